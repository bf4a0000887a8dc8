package codec

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/jsonlines"
)

// freeForm has the objects with names of the user as members: they have no unknown members.
var freeForm = map[string]bool{"environmentVars": true,
	"labels": true, "annotations": true, "secondary": true, "alternateOwnerAttrs": true, "block": true,
	"labelsToApply": true,
	"matchLabels":   true, "bpfLogFilters": true, "sequenceNumberForAllocation": true,
}

// inject adds an unknown member to every object inside v and counts them.
func inject(v any) (count int) {
	switch v := v.(type) {
	case map[string]any:
		for name, x := range v {
			if !freeForm[name] {
				count += inject(x)
			}
		}
		v["fromTheFuture"] = map[string]any{"number": json.Number("9007199254740993"), "list": []any{true, nil}}
		return count + 1
	case []any:
		for _, x := range v {
			count += inject(x)
		}
	}
	return count
}

// Every object that Calico wrote gets an unknown field at every level and is then changed in one place. Only this place
// may differ afterwards.
func TestFieldsOfTheFutureSurviveAtEveryLevel(t *testing.T) {
	total := 0
	for _, s := range jsonlines.Read[stored](t, "testdata/objects.jsonl") {
		k := storedKey(s.Key)
		want := exact(t, []byte(s.Raw))
		total += inject(want)
		raw, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		o := Decode(k, raw, 1)
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		if same, err := Encode(o); err != nil || string(same) != string(raw) {
			t.Errorf("%s changed without a change: %v\n%s\n%s", k, err, raw, same)
		}
		next := o.Clone()
		change(t, next, want.(map[string]any))
		got, err := Encode(next)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(exact(t, got), want) {
			w, _ := json.Marshal(want)
			t.Errorf("%s\nwant %s\ngot  %s", k, w, got)
		}
	}
	if total < 400 {
		t.Errorf("only %d fields were added", total)
	}
}

// change makes the same change to an object and to its JSON form.
func change(t *testing.T, o *model.Object, stored map[string]any) {
	if m := o.Metadata(); m != nil {
		m.SetOwnerReferences(nil)
		m.SetGenerateName("changed-")
		stored["metadata"].(map[string]any)["generateName"] = "changed-"
		return
	}
	switch v := o.Value.(type) {
	case *model.Block:
		v.SequenceNumber = 1<<64 - 1
		stored["sequenceNumber"] = json.Number("18446744073709551615")
	case *model.BlockAffinity:
		v.State = model.StatePendingDeletion
		stored["state"] = "pendingDeletion"
	case *model.Handle:
		v.Block["10.255.0.0/26"] = 3
		stored["block"].(map[string]any)["10.255.0.0/26"] = json.Number("3")
	case *model.IPAMConfig:
		v.MaxBlocksPerHost = 0
		delete(stored, "maxBlocksPerHost")
	default:
		t.Fatalf("no change for %T", v)
	}
}

// A program that rewrites an object must not fail because of another program's invalid field; only the added fields are
// validated.
func TestOldFaultsDoNotBlockAnUpdate(t *testing.T) {
	key := model.ResourceKey(model.KindNode, "n1")
	old := Decode(key,
		[]byte(
			`{"metadata":{"name":"n1"},"spec":{"bgp":{"ipv4Address":"10.0.0.1/24"},"addresses":[{"address":"10.0.0.1","type":"Newer"}]},"status":{}}`), 1)
	o := old.Clone()
	o.Value.(*model.Node).Spec.BGP.IPv4IPIPTunnelAddr = "10.1.0.1"
	if err := PrepareUpdate(o); err != nil {
		t.Errorf("refused for what was there before: %v", err)
	}
	o.Value.(*model.Node).Spec.VXLANTunnelMACAddr = "?"
	if err := PrepareUpdate(o); err == nil {
		t.Error("a new fault was accepted")
	}
	fresh := model.NewObject(key, old.Value)
	if err := PrepareCreate(fresh.Clone(), testTime); err == nil {
		t.Error("the fault was accepted in a new object")
	}
	broken := Decode(model.ResourceKey(model.KindBGPPeer, "p"), []byte(`{"metadata":{"name":"p"},"spec":{"peerIP":"here"}}`),
		1).Clone()
	broken.Metadata().SetLabels(map[string]string{"a": "b"})
	if err := PrepareUpdate(broken); err == nil {
		t.Error("a quarantined object was rewritten without being repaired")
	}
}
