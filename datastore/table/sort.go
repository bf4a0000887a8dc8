package table

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// Order sorts objects by a field.
type Order struct{ column templateColumn }

// ParseOrder parses a path such as .spec.order or {.metadata.name}.
func ParseOrder(path string) (Order, error) {
	p, err := parsePath(path)
	return Order{templateColumn{path: p}}, err
}

// Sort sorts objects by the values of the field: objects without it first, numbers by their size, others as text.
// Objects of equal values stay in their order.
func (o Order) Sort(objects []*model.Object) error {
	values := map[*model.Object]any{}
	for _, x := range objects {
		text, err := json.Marshal(document(x))
		if err != nil {
			return err
		}
		var item any
		if err := json.Unmarshal(text, &item); err != nil {
			return err
		}
		values[x] = o.column.value(item)
	}
	slices.SortStableFunc(objects, func(a, b *model.Object) int { return compareValues(values[a], values[b]) })
	return nil
}

// value returns the first value of the path, nil if there is none.
func (c templateColumn) value(item any) any {
	found, err := c.path.FindResults(item)
	if err != nil || len(found) == 0 || len(found[0]) == 0 || !found[0][0].IsValid() {
		return nil
	}
	return found[0][0].Interface()
}

func compareValues(a, b any) int {
	x, isX := a.(float64)
	y, isY := b.(float64)
	switch {
	case a == nil || b == nil:
		return cmp.Compare(rank(a), rank(b))
	case isX && isY:
		return cmp.Compare(x, y)
	}
	return strings.Compare(jsonText(a), jsonText(b))
}

func rank(v any) int {
	if v == nil {
		return 0
	}
	return 1
}

func jsonText(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}
