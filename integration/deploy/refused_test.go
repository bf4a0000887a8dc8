package deploy

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/validation/validationtest"
	"github.com/manxnet/manx/integration/jsonlines"
)

// Reasons why a definition cannot say what manxctl says.
const (
	selectorText = "a schema cannot parse the language of selectors"
	noLimit      = "the rule compares fields or elements of a list that has no greatest length: its cost has no limit"
	textCost     = "the text has no greatest length, so that the cost of a comparison has no limit"
	addressText  = "an address cannot be computed before Kubernetes 1.31, and arithmetic on 256 texts in each of " +
		"1024 rules costs too much"
	product = "the cost is the product of three lists: 500 prefixes with 50 communities each, and 500 names"
)

// onlyManxctl are objects, by what they show, that manxctl refuses and the API server cannot.
var onlyManxctl = map[string]string{
	"community that is not defined":                      product,
	"host bits in a filter":                              noLimit,
	"templates of one name":                              noLimit,
	"template with a bad pattern":                        textCost,
	"key of an annotation":                               textCost,
	"host bits":                                          addressText,
	"a selector that does not parse":                     selectorText,
	"a selector of a rule that does not parse":           selectorText,
	"a selector of service accounts that does not parse": selectorText,
	"a method twice":                                     textCost,
	"excepted network outside":                           addressText,
	"peer of no kind":                                    noLimit,
	"block and selector":                                 noLimit,
	"end of a range without its beginning":               noLimit,
	"range the wrong way round":                          noLimit,
	"range from a name":                                  noLimit,
}

// asNumberText are valid objects for manxctl alone: the definitions want numbers, as Calico's do.
var asNumberText = []string{"32-bit AS numbers are accepted everywhere", "a rule with everything"}

// What manxctl refuses, the API server refuses, unless onlyManxctl says why it cannot; it accepts what manxctl accepts.
func TestRefusedByBoth(t *testing.T) {
	a := startAPI(t, groupV3)
	a.namespaces("ns")
	refused, accepted, left := 0, 0, 0
	for _, row := range slices.Concat(validationtest.Objects(), validationtest.Policies()) {
		_, text := row.Document()
		o := asWritten(t, []byte(text))
		if _, ok := a.resources[o.GetAPIVersion()+" "+o.GetKind()]; !ok {
			continue // kinds that Kubernetes keeps in objects of its own
		}
		why, alone := onlyManxctl[row.Rule]
		if refusedByManxctl(t, []byte(text)) != (row.Want != "") {
			t.Errorf("%s: manxctl decides otherwise", row.Rule)
		}
		switch err := a.dryRun(o); {
		case row.Want == "" && slices.Contains(asNumberText, row.Rule):
		case row.Want == "" && err != nil:
			t.Errorf("%s: manxctl accepts it: %v", row.Rule, err)
		case row.Want == "":
			accepted++
		case alone && err == nil:
			left++
		case alone:
			t.Errorf("%s: refused, although %s: %v", row.Rule, why, err)
		case err == nil:
			t.Errorf("%s: the API server accepts what manxctl refuses because of %s", row.Rule, row.Want)
		case !apierrors.IsInvalid(err):
			t.Errorf("%s: refused as %s: %v", row.Rule, apierrors.ReasonForError(err), err)
		default:
			refused++
		}
	}
	if refused < 120 || accepted < 30 || left != len(onlyManxctl) {
		t.Errorf("%d refused, %d accepted, %d of %d left to manxctl", refused, accepted, left, len(onlyManxctl))
	}
	t.Run("what Calico accepts", a.testOdd)
}

// testOdd: odd objects that Calico accepts and manxctl, too, are accepted.
func (a *api) testOdd(t *testing.T) {
	n := 0
	for _, line := range jsonlines.Read[struct{ Doc json.RawMessage }](t, fixtures+"accepted-although-odd.jsonl") {
		o := object(t, line.Doc)
		r, ok := a.resources[o.GetAPIVersion()+" "+o.GetKind()]
		if !ok || refusedByManxctl(t, line.Doc) {
			continue
		}
		if r.namespaced {
			o.SetNamespace("ns")
		}
		if n++; a.dryRun(o) != nil {
			t.Errorf("%s: %v", line.Doc, a.dryRun(o))
		}
	}
	if n == 0 {
		t.Error("no object was tried")
	}
}

// asWritten is the object of a document in the form in which manxctl sends it, so that n is a name and no boolean.
func asWritten(t *testing.T, text []byte) *unstructured.Unstructured {
	t.Helper()
	o := decode(t, text)
	if objects, err := document.Parse(text); err == nil {
		raw, err := json.Marshal(objects[0].Value)
		if err != nil {
			t.Fatal(err)
		}
		o = object(t, raw)
	}
	return o
}

// dryRun creates nothing; unknown fields are errors.
func (a *api) dryRun(o *unstructured.Unstructured) error {
	_, err := a.on(o).Create(context.Background(), o, metav1.CreateOptions{DryRun: []string{"All"},
		FieldValidation: metav1.FieldValidationStrict})
	return err
}
