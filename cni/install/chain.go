package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
)

// list is a network configuration list (CNI specification, section 1). Its keys and plugins keep their text.
type list struct {
	keys    map[string]json.RawMessage // without plugins
	plugins []plugged
}

// plugged is one plugin of a list.
type plugged struct {
	text  json.RawMessage
	value map[string]any
}

func (p plugged) kind() string {
	kind, _ := p.value["type"].(string)
	return kind
}

// network reports whether this is the network plugin of Calico or Manx, which makes the pod's interface.
func (p plugged) network() bool { return slices.Contains(pluginTypes, p.kind()) }

// manx reports whether only Manx can have written the plugin's configuration. The last two keys are in the lists of
// versions that wrote no requireKey without policy.
func (p plugged) manx() bool {
	has := func(key string) bool { _, set := p.value[key]; return set }
	return p.network() && (p.kind() != "calico" || has(requireKey) || has("etcd_endpoints") && has("calico_api_group"))
}

func (p plugged) equal(q plugged) bool { return reflect.DeepEqual(p.value, q.value) }

// parseList reads a list, or the configuration of a single plugin as a list of one.
func parseList(text []byte) (*list, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(text, &keys); err != nil {
		return nil, err
	}
	var texts []json.RawMessage
	switch {
	case keys["plugins"] != nil:
		if err := json.Unmarshal(keys["plugins"], &texts); err != nil {
			return nil, err
		}
		delete(keys, "plugins")
	case keys["type"] != nil:
		texts, keys = []json.RawMessage{text}, nil
	default:
		return nil, errors.New("it has neither plugins nor a type")
	}
	l := &list{keys: keys}
	for _, text := range texts {
		p := plugged{text: text}
		if err := json.Unmarshal(text, &p.value); err != nil {
			return nil, err
		}
		l.plugins = append(l.plugins, p)
	}
	return l, nil
}

func (l *list) marshal() ([]byte, error) {
	texts := []json.RawMessage{}
	for _, p := range l.plugins {
		texts = append(texts, p.text)
	}
	all := map[string]any{"plugins": texts}
	for key, text := range l.keys {
		all[key] = text
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(all)
	return out.Bytes(), err
}

// equal reports whether two lists have the same meaning.
func (l *list) equal(m *list) bool {
	same := func(a, b json.RawMessage) bool {
		var x, y any
		return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
	}
	return maps.EqualFunc(l.keys, m.keys, same) && slices.EqualFunc(l.plugins, m.plugins, plugged.equal)
}

// own returns which plugins belong to the network: Calico's and Manx's, and those that base has, too. first: if there
// is neither, the first plugin, which makes the pod's interface. The others were chained by other programs.
func (l *list) own(base *list, first bool) []bool {
	own := make([]bool, len(l.plugins))
	for i, p := range l.plugins {
		own[i] = p.network()
	}
	if first && len(own) > 0 && !slices.Contains(own, true) {
		own[0] = true
	}
	left := slices.DeleteFunc(slices.Clone(base.plugins), plugged.network)
	sameKind := func(p, q plugged) bool { return p.kind() == q.kind() }
	for _, same := range []func(p, q plugged) bool{plugged.equal, sameKind} { // of two of a kind, ours is the equal one
		left = slices.DeleteFunc(left, func(p plugged) bool {
			for i, q := range l.plugins {
				if !own[i] && same(p, q) {
					own[i] = true
					return true
				}
			}
			return false
		})
	}
	return own
}

// with returns the list with the plugins of wanted in the places of its own ones, in their order; further ones come
// behind these. The plugins of others stay as they are. Keys that base had go, those of wanted come, others stay.
func (l *list) with(wanted, base *list, own []bool) *list {
	merged := &list{keys: map[string]json.RawMessage{}}
	maps.Copy(merged.keys, l.keys)
	maps.DeleteFunc(merged.keys, func(key string, _ json.RawMessage) bool { return base.keys[key] != nil })
	maps.Copy(merged.keys, wanted.keys)
	rest, behind := wanted.plugins, 0
	for i, p := range l.plugins {
		switch {
		case !own[i]:
			merged.plugins = append(merged.plugins, p)
		case len(rest) > 0:
			merged.plugins = append(merged.plugins, rest[0])
			rest, behind = rest[1:], len(merged.plugins)
		}
	}
	merged.plugins = slices.Insert(merged.plugins, behind, rest...)
	return merged
}

// chosen returns the list with those plugins alone whose value in own is want.
func (l *list) chosen(own []bool, want bool) *list {
	some := &list{keys: l.keys}
	for i, p := range l.plugins {
		if own[i] == want {
			some.plugins = append(some.plugins, p)
		}
	}
	return some
}

// kinds returns the types of the plugins.
func (l *list) kinds() (kinds []string) {
	for _, p := range l.plugins {
		kinds = append(kinds, p.kind())
	}
	return kinds
}
