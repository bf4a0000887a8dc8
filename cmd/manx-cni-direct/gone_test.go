package main

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A runtime that was killed in the middle of an ADD does not read the result and has forgotten the container. The ADD
// undoes its work.
func TestRuntimeIsGone(t *testing.T) {
	h := newHost(t)
	p := h.pod("")
	conf := maps.Clone(h.conf)
	conf["name"] = network
	text, err := json.Marshal(conf)
	h.must(err)
	read, write, err := os.Pipe()
	h.must(err)
	h.must(read.Close())
	defer write.Close() //nolint:errcheck // nothing was written
	var stderr strings.Builder
	cmd := exec.Command("nsenter", "--net=/run/netns/"+h.name, filepath.Join(h.dir, "bin", h.conf["type"].(string)))
	cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID="+p.id, "CNI_NETNS="+p.path(), "CNI_IFNAME=eth0",
		"CNI_PATH="+filepath.Join(h.dir, "bin"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(string(text)), write, &stderr
	if err := cmd.Run(); err == nil {
		t.Error("the plugin succeeds although nobody reads its result")
	}
	if left := h.leftovers(); left != "" {
		t.Errorf("left behind:\n%s\nthe plugin printed: %s", left, stderr.String())
	}
}
