package userinfo

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestHide(t *testing.T) {
	for text, want := range map[string]string{
		"http://a:1,https://root:hunter2@b:2":     "http://a:1,https://(hidden)@b:2",
		"https://u:hunter2@x@b/path?q=1":          "https://(hidden)@b/path?q=1",
		"https://u:hunter2'x@b":                   "https://(hidden)@b",
		"https://u:hunter2,x@b,https://u:pw@c":    "https://(hidden)@b,https://(hidden)@c",
		"https://hunter2@b:1":                     "https://(hidden)@b:1",
		"u:hunter2@x'y,z@b:2379":                  "(hidden)@b:2379",
		"GET u:hunter2@b: refused, see mail a@b":  "GET (hidden)@b: refused, see mail a@b",
		"2: cali1@if3: <UP> link/ether 0:1:2:3":   "2: cali1@if3: <UP> link/ether 0:1:2:3",
		"http://10.0.0.1:2379 http://[fe80::1]:9": "http://10.0.0.1:2379 http://[fe80::1]:9",
	} {
		if got := string(Hide([]byte(text))); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
	quoted, err := json.Marshal(map[string]string{"value": `https://u:hun"ter2@b`, "other": "kept"})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(Hide(quoted)); strings.Contains(got, "ter2") || !strings.Contains(got, `"other":"kept"`) {
		t.Errorf("in JSON: %s", got)
	}
}
