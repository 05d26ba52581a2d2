-- Health of an Operator, and of an instance of any package.
if obj.status == nil or obj.status.conditions == nil then
  return {status = "Progressing", message = "no manager of Operetta has seen it yet"}
end
if obj.status.observedGeneration ~= nil and obj.status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "no manager of Operetta has seen the newest spec yet"}
end
local found = {}
for _, condition in ipairs(obj.status.conditions) do
  found[condition.type] = condition
end
local ready = found.Ready or {status = "Unknown", message = "there is no condition Ready"}
if ready.reason == "Paused" then
  return {status = "Suspended", message = ready.message}
end
if found.Stalled ~= nil and found.Stalled.status == "True" then
  return {status = "Degraded", message = found.Stalled.message}
end
if ready.status == "True" then
  return {status = "Healthy", message = ready.message}
end
return {status = "Progressing", message = ready.message}
