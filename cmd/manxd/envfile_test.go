package main

import (
	"maps"
	"strings"
	"testing"
)

func TestEnvFile(t *testing.T) {
	got, err := parseEnvFile("# A=1\n; B=2\n\n  IP = 10.0.0.1 \nEMPTY=\n" +
		"Q=\"a # b\"\nS='{\"a\": 1}'\nJ={\"a\": \"b=c\"}\nIP=10.0.0.2")
	want := map[string]string{"IP": "10.0.0.2", "EMPTY": "", "Q": "a # b", "S": `{"a": 1}`, "J": `{"a": "b=c"}`}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	for text, problem := range map[string]string{
		"IP=a\nexport IP=10.0.0.1": `line 2 is not NAME=value`,
		"IP":                       "line 1 is not NAME=value",
		"export PW=hunter2":        `line 1 is not NAME=value, and systemd ignores it: it begins with "export PW"`,
		"hunter2":                  "line 1 is not NAME=value",
		"IP=\\x":                   "backslash",
		"IP='a":                    "quotes of IP",
		`IP="a"b"`:                 "quotes of IP",
		"IP=\"a' ":                 "quotes of IP",
	} {
		if got, err := parseEnvFile(text); err == nil || !strings.Contains(err.Error(), problem) ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}
