package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	yamlv3 "gopkg.in/yaml.v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/manxnet/manx/datastore/model"
)

// reader turns the nodes of one document into resources.
type reader struct {
	source string
	shift  int // lines before the document
	docs   []Document
	errs   []error
}

func (r *reader) fail(n *yamlv3.Node, format string, args ...any) {
	r.failAt(n.Line+r.shift, format, args...)
}

func (r *reader) failAt(line int, format string, args ...any) {
	r.errs = append(r.errs, &Error{Source: r.source, Line: line, Text: fmt.Sprintf(format, args...)})
}

// resources reads a resource, a list object ("kind: IPPoolList", "kind: List") or an array of resources.
func (r *reader) resources(n *yamlv3.Node) {
	switch n.Kind {
	case yamlv3.DocumentNode:
		for _, c := range n.Content {
			r.resources(c)
		}
	case yamlv3.SequenceNode:
		for _, c := range n.Content {
			r.resources(c)
		}
	case yamlv3.MappingNode:
		if items := lookup(n, "items"); items != nil && strings.HasSuffix(text(n, "kind"), "List") {
			r.resources(items)
			return
		}
		r.resource(n)
	case yamlv3.AliasNode:
		r.resources(n.Alias)
	default:
		if n.Tag != "!!null" { // an empty document is no mistake
			r.fail(n, "%q is no resource: want a mapping with apiVersion, kind, metadata and spec", n.Value)
		}
	}
}

func (r *reader) resource(n *yamlv3.Node) {
	info, ok := r.kind(n)
	if !ok {
		return
	}
	var plain map[string]any
	if err := n.Decode(&plain); err != nil { // finds keys that stand twice
		r.failYAML(err)
		return
	}
	asYAML, err := yamlv3.Marshal(n)
	if err != nil {
		r.fail(n, "%v", err)
		return
	}
	if !r.knownFields(n, asYAML, info) {
		return
	}
	value := info.New()
	if err := yaml.Unmarshal(asYAML, value); err != nil {
		r.failType(n, err)
		return
	}
	m := value.(metav1.Object)
	key := model.Key{Kind: info.Kind, Namespace: m.GetNamespace(), Name: m.GetName()}
	r.docs = append(r.docs, Document{Source: r.source, Line: n.Line + r.shift, Object: model.NewObject(key, value)})
}

// kind finds the row of the resource's kind and checks apiVersion.
func (r *reader) kind(n *yamlv3.Node) (model.KindInfo, bool) {
	kind, version := text(n, "kind"), text(n, "apiVersion")
	if kind == "" {
		r.fail(n, "kind is missing")
		return model.KindInfo{}, false
	}
	info, ok := model.Lookup(model.Kind(kind))
	switch {
	case !ok:
		r.fail(lookup(n, "kind"), "kind %q is not known here", kind)
	case !info.Resource:
		r.fail(lookup(n, "kind"), "kind %q belongs to the address allocator and cannot be written", kind)
	case version == "":
		r.fail(n, "apiVersion is missing: want %q", model.APIVersion)
	case version != model.APIVersion:
		r.fail(lookup(n, "apiVersion"), "apiVersion is %q: want %q", version, model.APIVersion)
	default:
		return info, true
	}
	return info, false
}

// knownFields reports every field that the kind does not have.
func (r *reader) knownFields(n *yamlv3.Node, asYAML []byte, info model.KindInfo) bool {
	asJSON, err := yaml.YAMLToJSON(asYAML)
	if err != nil {
		r.failYAML(err)
		return false
	}
	strict, _ := sjson.UnmarshalStrict(asJSON, info.New(), sjson.DisallowUnknownFields) // the other error: see failType
	for _, e := range strict {
		var f sjson.FieldError
		if !errors.As(e, &f) {
			r.fail(n, "%v", e)
			continue
		}
		r.fail(at(n, f.FieldPath()), "%s has no field %q here: it is not known, or in the wrong place", info.Kind, f.FieldPath())
	}
	return len(strict) == 0
}

// failType reports a value of the wrong type.
func (r *reader) failType(n *yamlv3.Node, err error) {
	var t *json.UnmarshalTypeError
	if errors.As(err, &t) && t.Field != "" {
		want := t.Type.String()
		r.fail(at(n, t.Field), "%s is a %s: want a value of type %s", t.Field, t.Value, want[strings.LastIndexByte(want, '.')+1:])
		return
	}
	texts := strings.Split(err.Error(), ": ")
	r.fail(n, "%s", texts[len(texts)-1])
}

var yamlLine = regexp.MustCompile(`line (\d+): `)

// failYAML reports an error of the YAML library, whose line counts from the beginning of the document's part.
func (r *reader) failYAML(err error) {
	r.errs = append(r.errs, syntaxError(r.source, r.shift, err))
}

func syntaxError(source string, shift int, err error) error {
	text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "unmarshal errors:\n  ")
	line := 1
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = strings.Replace(text, m[0], "", 1)
	}
	return &Error{Source: source, Line: line + shift, Text: "not readable: " + text}
}

// lookup returns the value of a mapping's key, nil if there is none.
func lookup(n *yamlv3.Node, key string) *yamlv3.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

func text(n *yamlv3.Node, key string) string {
	if v := lookup(n, key); v != nil && v.Kind == yamlv3.ScalarNode {
		return v.Value
	}
	return ""
}

// at finds the key that a path like "spec.rules[1].action" names, or the deepest node on the way to it.
func at(n *yamlv3.Node, path string) *yamlv3.Node {
	found := n
	for _, step := range strings.FieldsFunc(path, func(c rune) bool { return c == '.' || c == '[' || c == ']' }) {
		for n.Kind == yamlv3.AliasNode {
			n = n.Alias
		}
		switch n.Kind {
		case yamlv3.SequenceNode:
			i, err := strconv.Atoi(step)
			if err != nil || i >= len(n.Content) {
				return found
			}
			n = n.Content[i]
			found = n
		case yamlv3.MappingNode:
			v := lookup(n, step)
			if v == nil {
				return found
			}
			for _, c := range n.Content {
				if c.Value == step {
					found = c
					break
				}
			}
			n = v
		default:
			return found
		}
	}
	return found
}
