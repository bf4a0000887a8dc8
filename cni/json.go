package cni

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// The plugin runs once for each call. Before encoding/json handles the first value of a structure it examines all its
// fields, which takes longer than everything else that it does for a short text. So a plugin's requests and responses
// are handled member by member.

// text returns the request as JSON. Config must be JSON.
func (q *Request) text() ([]byte, error) {
	if len(q.Previous) > 0 || len(q.Valid) > 0 || q.Attachment != nil && q.Attachment.received == nil {
		return json.Marshal(q)
	}
	b := strconv.AppendInt([]byte(`{"version":`), int64(q.Version), 10)
	for _, m := range []struct{ name, value string }{
		{"step", string(q.Step)}, {"containerID", q.ContainerID}, {"netns", q.Netns}, {"ifName", q.IfName},
		{"args", q.Args}, {"interfacePrefix", q.InterfacePrefix},
	} {
		if m.value != "" {
			b = appendText(append(append(append(b, `,"`...), m.name...), `":`...), m.value)
		}
	}
	if q.Early {
		b = append(b, `,"early":true`...)
	}
	if q.Attachment != nil {
		b = append(append(b, `,"attachment":`...), q.Attachment.received...)
	}
	if len(q.Config) > 0 {
		b = append(append(b, `,"config":`...), q.Config...)
	}
	return append(b, '}'), nil
}

// appendText appends a string of JSON.
func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s) // a string has no error
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *Response) UnmarshalJSON(text []byte) error {
	return unmarshalMembers(text, map[string]any{"version": &r.Version, "error": &r.Error, "attachment": &r.Attachment,
		"config": &r.Config, "early": &r.Early, "result": &r.Result})
}

// UnmarshalJSON implements json.Unmarshaler.
func (a *Attachment) UnmarshalJSON(text []byte) error {
	a.received = append(a.received[:0], text...)
	return unmarshalMembers(text, map[string]any{"hostIf": &a.HostIf, "mac": &a.MAC, "mtu": &a.MTU,
		"addresses": &a.Addresses, "ipv4": &a.IPv4, "ipv6": &a.IPv6, "routes": &a.Routes, "forwarding": &a.Forwarding,
		"exclusive": &a.Exclusive, "routed": &a.Routed, "assigned": &a.Assigned, "repeated": &a.Repeated,
		"deferred": &a.Deferred, "fresh": &a.Fresh})
}

// unmarshalMembers reads the members of a JSON object into variables; it ignores others.
func unmarshalMembers(text []byte, into map[string]any) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return err
	}
	for name, value := range members {
		to, ok := into[name]
		if !ok {
			continue
		}
		if err := json.Unmarshal(value, to); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}
