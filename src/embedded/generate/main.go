// Writes what the embedded API knows of the built-in kinds, from the code of kube-apiserver itself:
//
//	definitions.txt   a line for each definition: its name and its schema as JSON. Beside the words of OpenAPI
//	                  a field has `go`: its Go type, after `?` if it is a pointer, after `-` if its zero value is not written.
//	defaults.txt      a line for each default of a field: definition, field, value as JSON.
//	numbers.txt       a line for each definition: its name, its kind or `-`, and for each field that Protobuf has: its
//	                  number, its name or `-` if its fields are those of the object, and its shape. See protobuf.rs.
//	words.txt         a line for each definition: its name and the descriptions of it and of its fields as JSON.
//
// README.md says how it is run.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	aggregator "k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/controlplane"
	"k8s.io/kubernetes/pkg/generated/openapi"
)

type model interface{ OpenAPIModelName() string }

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func short(name string) string {
	name = name[strings.LastIndex(name, "/")+1:]
	name = strings.TrimPrefix(name, "io.k8s.")
	name = strings.TrimPrefix(name, "api.")
	name = strings.ReplaceAll(name, "apimachinery.pkg.apis.", "")
	return strings.ReplaceAll(name, "apiextensions-apiserver.pkg.apis.", "")
}

// name is the definition of a Go type, if it has one.
func name(t reflect.Type) string {
	if m, ok := reflect.New(t).Interface().(model); ok {
		return short(m.OpenAPIModelName())
	}
	return ""
}

type field struct {
	name, flags string
	t           reflect.Type
	index       []int
}

func fields(t reflect.Type) (all []field) {
	for i := 0; i < t.NumField(); i++ {
		f := t.Field(i)
		parts := strings.Split(f.Tag.Get("json"), ",")
		if f.Anonymous && parts[0] == "" {
			if f.Type.Kind() == reflect.Struct {
				for _, inner := range fields(f.Type) {
					inner.index = append([]int{i}, inner.index...)
					all = append(all, inner)
				}
			}
			continue
		}
		if parts[0] == "-" || parts[0] == "" {
			continue
		}
		flags, ft := "", f.Type
		for _, option := range parts[1:] {
			if option == "omitempty" && ft.Kind() != reflect.Struct || option == "omitzero" {
				flags = "-"
			}
		}
		if ft.Kind() == reflect.Pointer {
			flags, ft = flags+"?", ft.Elem()
		}
		all = append(all, field{parts[0], flags, ft, []int{i}})
	}
	return all
}

var types = map[string]reflect.Type{}

func reach(t reflect.Type) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		reach(t.Elem())
	case reflect.Struct:
		n := name(t)
		if n == "" || types[n] != nil {
			return
		}
		types[n] = t
		for _, f := range fields(t) {
			reach(f.t)
		}
	}
}

func convert(s *spec.Schema, t reflect.Type) map[string]any {
	out := map[string]any{}
	ref := s.Ref.String()
	if ref == "" && len(s.AllOf) == 1 {
		ref = s.AllOf[0].Ref.String()
	}
	if ref != "" {
		out["$ref"] = short(ref)
	} else if len(s.Type) > 0 {
		out["type"] = s.Type[0]
	}
	if s.Format != "" {
		out["format"] = s.Format
	}
	if s.Default != nil {
		if text, _ := json.Marshal(s.Default); string(text) != "{}" {
			out["default"] = s.Default
		}
	}
	if len(s.Required) > 0 {
		out["required"] = s.Required
	}
	if len(s.Enum) > 0 {
		out["enum"] = s.Enum
	}
	for key, value := range s.Extensions {
		out[key] = value
	}
	if s.Items != nil {
		out["items"] = convert(s.Items.Schema, nil)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		out["additionalProperties"] = convert(s.AdditionalProperties.Schema, nil)
	}
	if len(s.Properties) > 0 {
		properties := map[string]any{}
		for name, property := range s.Properties {
			properties[name] = convert(&property, nil)
		}
		if t != nil {
			for _, f := range fields(t) {
				if p, ok := properties[f.name].(map[string]any); ok {
					p["go"] = f.flags + f.t.String()
				}
			}
		}
		out["properties"] = properties
	}
	return out
}

// fill gives each struct, pointer to a struct and list of structs a value.
func fill(v reflect.Value, depth int) {
	if depth > 14 {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.Type().Elem().Kind() == reflect.Struct && name(v.Type().Elem()) != "" && v.CanSet() {
			if strings.HasSuffix(v.Type().String(), "v1.Time") || strings.HasSuffix(v.Type().String(), "JSONSchemaProps") {
				return
			}
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), depth+1)
		}
	case reflect.Struct:
		for _, f := range fields(v.Type()) {
			fill(v.FieldByIndex(f.index), depth+1)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Struct && v.CanSet() {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fill(v.Index(0), depth+1)
		}
	}
}

var defaults = map[string]map[string]bool{}

func note(before, after reflect.Value) {
	switch after.Kind() {
	case reflect.Pointer:
		if !before.IsNil() && !after.IsNil() {
			note(before.Elem(), after.Elem())
		}
	case reflect.Slice:
		for i := 0; i < after.Len() && i < before.Len(); i++ {
			note(before.Index(i), after.Index(i))
		}
	case reflect.Struct:
		for _, f := range fields(after.Type()) {
			b, a := before.FieldByIndex(f.index), after.FieldByIndex(f.index)
			isStruct := a.Kind() == reflect.Pointer && a.Type().Elem().Kind() == reflect.Struct
			if a.Kind() != reflect.Struct && !isStruct && b.IsZero() && !a.IsZero() {
				value, err := json.Marshal(a.Interface())
				check(err)
				key := name(after.Type()) + " " + f.name
				if defaults[key] == nil {
					defaults[key] = map[string]bool{}
				}
				defaults[key][string(value)] = true
				continue
			}
			note(b, a)
		}
	}
}

func default_(object runtime.Object, root string) {
	before := object.DeepCopyObject()
	func() {
		defer func() {
			if problem := recover(); problem != nil {
				fmt.Fprintln(os.Stderr, root, problem)
			}
		}()
		legacyscheme.Scheme.Default(object)
		note(reflect.ValueOf(before), reflect.ValueOf(object))
	}()
}

// shape is how Protobuf writes a type: a scalar, a type that is written in its own way, a list, a map, or a definition.
func shape(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.String() {
	case "v1.Time", "v1.MicroTime":
		return "time"
	case "v1.Duration":
		return "duration"
	case "resource.Quantity":
		return "quantity"
	case "intstr.IntOrString":
		return "either"
	case "v1.FieldsV1", "runtime.RawExtension", "v1.JSON":
		return "raw"
	case "v1.ExtraValue":
		return "words"
	}
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "bool"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint8, reflect.Uint32, reflect.Uint64:
		return "int"
	case reflect.Float64:
		return "float"
	case reflect.Map:
		return "{" + shape(t.Elem())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		return "[" + shape(t.Elem())
	}
	return name(t)
}

// inlined are the types whose fields are those of another in JSON, but not in Protobuf.
var inlined = map[string]reflect.Type{}

func numbers(t reflect.Type) (out string) {
	for i := 0; i < t.NumField(); i++ {
		f := t.Field(i)
		tag := strings.Split(f.Tag.Get("protobuf"), ",")
		key := strings.Split(f.Tag.Get("json"), ",")[0]
		isInlined := f.Anonymous && f.Type.Kind() == reflect.Struct
		if len(tag) < 2 || key == "" && !isInlined {
			continue
		}
		if key == "" {
			key = "-"
			inlined[name(f.Type)] = f.Type
		}
		if shape(f.Type) == "" {
			fmt.Fprintln(os.Stderr, "no shape:", t, f.Name)
			continue
		}
		out += " " + tag[1] + " " + key + " " + shape(f.Type)
	}
	return out
}

func write(path string, lines []string) {
	sort.Strings(lines)
	check(os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644))
}

func text(value any) string {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	check(encoder.Encode(value))
	return strings.TrimSpace(out.String())
}

func main() {
	apiextensions.Install(legacyscheme.Scheme)
	aggregator.Install(legacyscheme.Scheme)
	kinds := map[schema.GroupVersionKind]reflect.Type{}
	for gvk, t := range legacyscheme.Scheme.AllKnownTypes() {
		if gvk.Version == runtime.APIVersionInternal || strings.Contains(gvk.Version, "alpha") || strings.Contains(gvk.Version, "beta") {
			continue
		}
		if name(t) == "" || strings.HasSuffix(gvk.Kind, "List") || strings.HasPrefix(name(t), "meta.v1.") {
			continue
		}
		kinds[gvk] = t
		reach(t)
	}
	definitions := openapi.GetOpenAPIDefinitions(func(path string) spec.Ref { return spec.MustCreateRef("#/d/" + path) })
	full := map[string]common.OpenAPIDefinition{}
	for path, definition := range definitions {
		full[short(path)] = definition
	}
	var lines, words, wire []string
	for n, t := range types {
		definition := full[n].Schema
		out := convert(&definition, t)
		kind := "-"
		for gvk, known := range kinds {
			if known == t {
				out["kind"] = gvk.GroupVersion().String() + " " + gvk.Kind
				kind = gvk.GroupVersion().String() + ":" + gvk.Kind
			}
		}
		wire = append(wire, n+" "+kind+numbers(t))
		lines = append(lines, n+" "+text(out))
		says := map[string]string{"": definition.Description}
		for name, property := range definition.Properties {
			says[name] = property.Description
		}
		words = append(words, n+" "+text(says))
	}
	for len(inlined) > 0 {
		for n, t := range inlined {
			delete(inlined, n)
			if types[n] == nil {
				types[n] = t
				wire = append(wire, n+" -"+numbers(t))
			}
		}
	}
	for gvk, t := range kinds {
		object := reflect.New(t)
		default_(object.Interface().(runtime.Object), gvk.String())
		object = reflect.New(t)
		fill(object.Elem(), 0)
		default_(object.Interface().(runtime.Object), gvk.String())
	}
	var notes []string
	for key, values := range defaults {
		for value := range values {
			notes = append(notes, key+" "+value)
		}
	}
	folder := os.Args[1]
	write(filepath.Join(folder, "definitions.txt"), lines)
	write(filepath.Join(folder, "words.txt"), words)
	write(filepath.Join(folder, "numbers.txt"), wire)
	write(filepath.Join(folder, "defaults.txt"), notes)
}
