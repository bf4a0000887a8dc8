package cni

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

// whole is an attachment with a value in each field.
func whole(t *testing.T) *Attachment {
	t.Helper()
	a := &Attachment{HostIf: "cali1", MAC: "02:00:00:00:00:01", MTU: 1400, IPv4: true, IPv6: true, Forwarding: true,
		Addresses: []netip.Addr{netip.MustParseAddr("10.65.0.1"), netip.MustParseAddr("fd65::1")},
		Routes:    []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, Exclusive: true, Routed: true,
		Assigned: []netip.Prefix{netip.MustParsePrefix("10.65.0.1/26")}, Repeated: true, Deferred: true,
		Fresh: []netip.Addr{netip.MustParseAddr("10.65.0.1")}}
	filled(t, *a, "received")
	return a
}

// filled fails unless each field of a structure but those named has a value.
func filled(t *testing.T, s any, but ...string) {
	t.Helper()
	v := reflect.ValueOf(s)
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if v.Field(i).IsZero() && !bytes.Contains([]byte(joined(but)), []byte(" "+name+" ")) {
			t.Errorf("field %s of %s has no value", name, v.Type())
		}
	}
}

func joined(names []string) string {
	text := " "
	for _, n := range names {
		text += n + " "
	}
	return text
}

// Every field of a response arrives.
func TestResponseArrives(t *testing.T) {
	for name, want := range map[string]*Response{
		"empty": {},
		"all": {Version: 1, Error: types.NewError(11, "later", "the disk is full"), Attachment: whole(t),
			Config: json.RawMessage(`{"a":[1]}`), Early: whole(t), Result: "{\n \"cniVersion\": \"1.0.0\"\n}"},
	} {
		if name == "all" {
			filled(t, *want)
		}
		var frame bytes.Buffer
		if err := WriteFrame(&frame, want); err != nil {
			t.Fatal(err)
		}
		have := &Response{}
		if err := ReadFrame(&frame, have); err != nil {
			t.Fatal(err)
		}
		for _, a := range []*Attachment{have.Attachment, have.Early} {
			if a != nil {
				a.received = nil
			}
		}
		if !reflect.DeepEqual(have, want) {
			t.Errorf("%s: have %+v, want %+v", name, have, want)
		}
	}
	for _, text := range []string{`{"attachment":{"mtu":"x"}}`, `{"attachment":[]}`, `[]`, `{`, `{"version":"1"}`} {
		if err := json.Unmarshal([]byte(text), &Response{}); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
	if err := json.Unmarshal([]byte(`{"version":1,"new":{},"attachment":null}`), &Response{}); err != nil {
		t.Errorf("a member of a later version: %v", err)
	}
}

// Every field of a request arrives, for any texts.
func TestRequestArrives(t *testing.T) {
	for name, q := range map[string]*Request{
		"little": {Version: 1, Step: StepStatus, Config: json.RawMessage(`{"name":"net"}`)},
		"all": {Version: 1, Step: StepFinish, ContainerID: "c1", Netns: "/run/netns/x", IfName: "eth0",
			Args: "K8S_POD_NAME=a;IP=\"1\"\\\n\x01é<&>\u2028", InterfacePrefix: "cali",
			Config: json.RawMessage("{\"name\":\"net\"}"), Early: true, Attachment: whole(t),
			Previous: []netip.Addr{netip.MustParseAddr("10.65.0.1")},
			Valid:    []types.GCAttachment{{ContainerID: "c", IfName: "eth0"}}},
	} {
		if name == "all" {
			filled(t, *q, "Begin")
		}
		text, err := json.Marshal(q)
		if err != nil {
			t.Fatal(err)
		}
		first := decoded(t, text)
		if text, err = json.Marshal(&first); err != nil { // with the attachment as it came
			t.Fatal(err)
		}
		second := decoded(t, text)
		for _, have := range []*Request{&first, &second} {
			if have.Attachment != nil {
				have.Attachment.received = nil
			}
			if !reflect.DeepEqual(have, q) {
				t.Errorf("%s: have %+v, want %+v", name, have, q)
			}
		}
	}
}

func decoded(t *testing.T, text []byte) (q Request) {
	t.Helper()
	if err := json.Unmarshal(text, &q); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return q
}

// Fields that a later manxd puts into an attachment return to it.
func TestAttachmentReturnsAsItCame(t *testing.T) {
	a := &Attachment{}
	if err := json.Unmarshal([]byte(`{"hostIf":"cali1","later":[1]}`), a); err != nil {
		t.Fatal(err)
	}
	q := &Request{Version: 1, Step: StepFinish, Attachment: a, Config: json.RawMessage(`{}`)}
	text, err := json.Marshal(q)
	if err != nil || !bytes.Contains(text, []byte(`"attachment":{"hostIf":"cali1","later":[1]}`)) {
		t.Errorf("%s, %v", text, err)
	}
}
