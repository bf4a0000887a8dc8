package plan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// state selects one version of each object.
func (r *reader) state() State {
	secrets := passwords{}
	s := State{Objects: model.Set{}, passwords: secrets}
	for key, versions := range r.found {
		slices.SortFunc(versions, newest)
		best := versions[0]
		for _, other := range versions[1:] {
			if !bytes.Equal(other.content, best.content) {
				r.remark(other.place, "", "%s is skipped: the one in %s counts, %s", key, best.at(""),
					whyNewer(best, other))
			}
		}
		if best.object == nil {
			secrets[key.Name] = best.secret
			continue
		}
		s.Objects[key] = best.object
	}
	slices.SortFunc(r.remarks, func(a, b remark) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line), cmp.Compare(a.text, b.text))
	})
	for _, m := range slices.Compact(r.remarks) {
		at := m.file
		if m.line > 0 {
			at += ":" + strconv.Itoa(m.line)
		}
		s.Remarks = append(s.Remarks, at+": "+m.text)
	}
	return s
}

// newest orders versions of one object: Calico's form before Kubernetes', a written one before a dumped one, the
// highest revision, and last by content, only for an order that does not depend on the files.
func newest(a, b found) int {
	return cmp.Or(
		compareBool(b.isCalico(), a.isCalico()),
		compareBool(b.meta.ResourceVersion == "", a.meta.ResourceVersion == ""),
		cmp.Compare(b.meta.revision(), a.meta.revision()),
		bytes.Compare(a.content, b.content),
		cmp.Compare(a.file, b.file), cmp.Compare(a.Line(""), b.Line("")))
}

func (f found) isCalico() bool {
	return f.APIVersion == "" || strings.Contains(f.APIVersion, "projectcalico.org")
}

func (m metadata) revision() uint64 {
	n, _ := strconv.ParseUint(m.ResourceVersion, 10, 64)
	return n
}

func whyNewer(best, other found) string {
	switch {
	case best.isCalico() != other.isCalico():
		return "as it is Calico's own object"
	case best.meta.ResourceVersion == "" && other.meta.ResourceVersion != "":
		return "as it has no resourceVersion and so is an edit"
	case best.meta.revision() != other.meta.revision():
		return "as its resourceVersion is higher"
	}
	return "by chance: neither one is known to be newer; leave out one of them"
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// content returns a document without the fields that change with each write.
func content(text []byte) []byte {
	var v map[string]any
	if json.Unmarshal(text, &v) != nil {
		return text
	}
	if m, ok := v["metadata"].(map[string]any); ok {
		for _, field := range []string{"resourceVersion", "uid", "creationTimestamp", "generation", "managedFields",
			"selfLink"} {
			delete(m, field)
		}
	}
	out, err := json.Marshal(v)
	if err != nil {
		return text
	}
	return out
}
