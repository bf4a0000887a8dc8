package cni

import (
	"bytes"
	"encoding/json"
)

// UnmarshalJSON implements json.Unmarshaler.
func (a *Attachment) UnmarshalJSON(text []byte) error {
	type plain Attachment
	a.received = bytes.Clone(text)
	return json.Unmarshal(text, (*plain)(a))
}

// MarshalJSON implements json.Marshaler: an attachment that was received returns with all its members, also those of a
// later version.
func (q *Request) MarshalJSON() ([]byte, error) {
	type plain Request
	if q.Attachment == nil || q.Attachment.received == nil {
		return json.Marshal((*plain)(q))
	}
	return json.Marshal(struct {
		*plain
		Attachment json.RawMessage `json:"attachment"`
	}{(*plain)(q), q.Attachment.received})
}
