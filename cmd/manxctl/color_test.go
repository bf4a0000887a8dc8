package main_test

import (
	"regexp"
	"strings"
	"testing"
)

var colors = regexp.MustCompile("\x1b\\[[0-9]*m")

// terminal runs a command on a terminal, by script(1).
func (s shell) terminal(args ...string) result {
	s.t.Helper()
	return s.program("script", "", "--quiet", "--return", "--command", binary+" "+strings.Join(args, " "), "/dev/null")
}

// TestColors: states stand out on a terminal alone, unless the user decides, and columns stay aligned.
func TestColors(t *testing.T) {
	t.Parallel()
	s, d := newPlayedDaemon(t)
	socket := "--socket=" + strings.TrimPrefix(s.env[0], "MANX_TEST_SOCKET=")
	s.env = append(s.env, "TERM=xterm")
	for command, want := range map[string][]string{
		"peers":         {"\x1b[32mEstablished\x1b[0m", "\x1b[31mFailed\x1b[0m", "\x1b[33mWaiting\x1b[0m"},
		"peers -o wide": {"\x1b[32mEstablished\x1b[0m"},
		"status":        {"\x1b[32mHealth:     ok\x1b[0m\n", "\x1b[33mNotice:"},
		"explain other db tcp/5432 -f " + explainFiles: {"\x1b[31mDENIED by "},
		"explain web db tcp/5432 -f " + explainFiles:   {"\x1b[32mALLOWED by "},
	} {
		args := append(strings.Fields(command), socket)
		plain := s.run(args...)
		if plain.code != 0 || colors.MatchString(plain.out) {
			t.Errorf("%s into a pipe: exit code %d\n%s%s", command, plain.code, plain.out, plain.err)
		}
		always := s.run(append(args, "--color=always")...)
		if colors.ReplaceAllString(always.out, "") != plain.out {
			t.Errorf("%s: without colors\n%s\nis not\n%s", command, always.out, plain.out)
		}
		on := s.terminal(args...)
		for _, text := range want {
			if !strings.Contains(always.out, text) ||
				!strings.Contains(strings.ReplaceAll(on.out, "\r\n", "\n"), text) {
				t.Errorf("%s lacks %q:\n%q\non a terminal\n%q", command, text, always.out, on.out)
			}
		}
	}
	for _, off := range []shell{{t, append(s.env, "NO_COLOR=1")}, {t, append(s.env, "TERM=dumb")}} {
		if r := off.terminal("peers", socket); r.code != 0 || colors.MatchString(r.out) {
			t.Errorf("%v: exit code %d, %q", off.env, r.code, r.out)
		}
	}
	if r := s.terminal("peers", socket, "--color=never"); r.code != 0 || colors.MatchString(r.out) {
		t.Errorf("--color=never: %q", r.out)
	}
	if r := s.run("peers", socket, "-o", "json", "--color=always"); colors.MatchString(r.out) {
		t.Errorf("JSON has colors: %q", r.out)
	}
	// Text of a peer has no colors of its own.
	d.change(func() { d.peers[0].Reason = "\x1b[31mfake" })
	if r := s.run("peers", socket, "--color=always"); strings.Contains(r.out, "\x1b[31mfake") {
		t.Errorf("a peer decides about colors: %q", r.out)
	}
	s.run("peers", "--color=maybe").want(t, 2, "", "want auto, always or never")
}
