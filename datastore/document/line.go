package document

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

var (
	yamlLine    = regexp.MustCompile(`line (\d+): `)
	strictField = regexp.MustCompile(`^(unknown|duplicate) field "(.*)"$`)
)

// yamlError returns the line in an error of a YAML library. A line of 0 is unknown.
func yamlError(err error) (line int, reason string) {
	reason = strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	reason = strings.TrimPrefix(reason, "yaml: ")
	reason = strings.Join(strings.Fields(strings.TrimPrefix(reason, "unmarshal errors:")), " ")
	if m := yamlLine.FindStringSubmatchIndex(reason); m != nil {
		line, _ = strconv.Atoi(reason[m[2]:m[3]])
		reason = reason[:m[0]] + reason[m[1]:]
	}
	return line, "this is neither YAML nor JSON: " + reason
}

// strictError rewords an error of the strict decoder.
func strictError(err error) (field, reason string) {
	m := strictField.FindStringSubmatch(err.Error())
	switch {
	case m == nil:
		return "", err.Error()
	case m[1] == "unknown":
		return m[2], fmt.Sprintf("%s: there is no such field here; is it misspelt or in the wrong place?", m[2])
	}
	return m[2], m[2] + ": the field is there twice"
}

var fieldParts = regexp.MustCompile(`"[^"]*"|[^.\[\]"]+`)

// splitField splits "spec.communities[0].name", and `metadata.annotations["a.b/c"]`.
func splitField(field string) []string {
	parts := fieldParts.FindAllString(field, -1)
	for i, p := range parts {
		parts[i] = strings.Trim(p, `"`)
	}
	return parts
}

// lineOf returns the line of a field, or of the innermost existing part of its path.
func (d document) lineOf(path []string) int {
	var root yaml.Node
	if yaml.Unmarshal(d.text, &root) != nil || len(root.Content) == 0 {
		return d.line
	}
	node, line := root.Content[0], root.Content[0].Line
	for _, name := range path {
		var found bool
		if node, line, found = child(node, name, line); !found {
			break
		}
	}
	return d.line + line - 1
}

// child steps into a mapping by key or into a sequence by index. line stays if there is no such child.
func child(node *yaml.Node, name string, line int) (*yaml.Node, int, bool) {
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == name {
				return node.Content[i+1], node.Content[i].Line, true
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i], node.Content[i].Line, true
		}
	}
	return node, line, false
}
