package validation_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation/validationtest"
)

func TestRules(t *testing.T) {
	for _, o := range validationtest.Objects() {
		t.Run(o.Rule, func(t *testing.T) {
			_, parsed := parse(t, o)
			wantRefusal(t, parsed, o.Want)
		})
	}
}

// parse reads the document of an object.
func parse(t *testing.T, o validationtest.Object) (model.Key, *model.Object) {
	t.Helper()
	key, text := o.Document()
	objects, err := document.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return key, objects[0]
}

// wantRefusal wants the creation of an object to be refused with a text, or not at all if that is empty.
func wantRefusal(t *testing.T, o *model.Object, want string) {
	t.Helper()
	err := codec.PrepareCreate(o, created)
	var invalid *model.InvalidError
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && (!errors.As(err, &invalid) || !strings.Contains(err.Error(), want)):
		t.Errorf("%v; want %q", err, want)
	}
}

func TestImmutableFieldsOfPools(t *testing.T) {
	key := model.ResourceKey(model.KindIPPool, "p")
	old := codec.Decode(key, []byte(`{"metadata":{"name":"p"},"spec":{"cidr":"fd00:0::/64","allowedUses":["LoadBalancer"]}}`),
		4)
	for _, c := range []struct {
		rule   string
		change func(*model.IPPool)
		want   string
	}{
		{"the spelling of the CIDR", func(p *model.IPPool) { p.Spec.CIDR = "FD00::/64" }, ""},
		{"the CIDR", func(p *model.IPPool) { p.Spec.CIDR = "fd01::/64" }, "spec.cidr"},
		{"the block size to its default", func(p *model.IPPool) { p.Spec.BlockSize = 122 }, ""},
		{"the block size", func(p *model.IPPool) { p.Spec.BlockSize = 123 }, "spec.blockSize"},
		{"the use", func(p *model.IPPool) { p.Spec.AllowedUses = []v3.IPPoolAllowedUse{"Workload"} },
			"spec.allowedUses"},
	} {
		o := old.Clone()
		c.change(o.Value.(*model.IPPool))
		err := codec.PrepareUpdate(o)
		if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("changing %s: %v", c.rule, err)
		}
	}
}

var created = time.Date(2026, 8, 1, 12, 0, 0, 999, time.FixedZone("x", 7200))
