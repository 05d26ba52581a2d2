-- Health of a PlanRun.
local status = obj.status or {}
local phase, message = status.phase or "Pending", status.message
if phase == "Succeeded" or phase == "Superseded" then
  return {status = "Healthy", message = message or phase}
end
if phase == "Failed" or phase == "Cancelled" then
  return {status = "Degraded", message = message or phase}
end
for _, step in ipairs(status.steps or {}) do
  if step.phase == "Running" and step.asked ~= nil then
    return {status = "Suspended", message = step.message or "a step waits for approval"}
  end
end
return {status = "Progressing", message = message or phase}
