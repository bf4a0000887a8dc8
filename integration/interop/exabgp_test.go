package interop

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// exabgp is ExaBGP, which has no table: it prints the messages that it receives, and announces its configuration.
type exabgp struct {
	site
	peering
	cmd *exec.Cmd
}

func (e *exabgp) name() string { return "ExaBGP" }

func (e *exabgp) config(p peering) string {
	var c strings.Builder
	fmt.Fprintf(&c, "process api { run %s; encoder json; }\n", e.file("api"))
	word := func(on bool) string {
		if on {
			return "enable"
		}
		return "disable"
	}
	ip := "ipv4"
	if p.manx.Is6() {
		ip = "ipv6"
	}
	manxAS := p.manxAS
	if p.twoByte && manxAS > 65535 {
		manxAS = 23456 // AS_TRANS: unlike the other routers it does not read our capability either
	}
	fmt.Fprintf(&c, "neighbor %s {\n router-id %s; local-address %s; local-as %d; peer-as %d;\n", p.manx, e.id, p.local,
		p.as, manxAS)
	fmt.Fprintf(&c, " listen 179; connect 179;\n"+
		" capability { graceful-restart 60; add-path send/receive; route-refresh; asn4 %s; }\n"+
		" family { %[2]s unicast; }\n add-path { %[2]s unicast; }\n"+
		" api { processes [ api ]; neighbor-changes; receive { parsed; update; } }\n", word(!p.twoByte), ip)
	if p.password != "" {
		fmt.Fprintf(&c, " md5-password %q;\n", p.password)
	}
	if p.ttl {
		c.WriteString(" outgoing-ttl 255; incoming-ttl 255;\n")
	}
	c.WriteString(" static {\n")
	hops := []string{"self"}
	if len(p.nextHops) > 0 {
		hops = nil
		for _, hop := range p.nextHops {
			hops = append(hops, hop.String())
		}
	}
	for _, prefix := range p.announce {
		for i, hop := range hops {
			fmt.Fprintf(&c, "  route %s next-hop %s path-information %d", prefix, hop, i+1)
			if p.behind != 0 {
				fmt.Fprintf(&c, " as-path [ %d %d ]", p.as, p.behind)
			}
			if p.tagged {
				fmt.Fprintf(&c, " community [ %s ] large-community [ %s ]", tagStandard, tagLarge)
			}
			c.WriteString(";\n")
		}
	}
	c.WriteString(" }\n}\n")
	return c.String()
}

func (e *exabgp) run(t *testing.T, p peering) {
	t.Helper()
	e.stop()
	e.peering = p
	e.write(t, "exabgp.conf", e.config(p))
	e.write(t, "api", fmt.Sprintf("#!/bin/sh\ntail -n 0 -f %s &\nexec cat >>%s\n", e.file("commands"),
		e.file("messages")))
	must(t, os.Chmod(e.file("api"), 0o755))
	e.recover(t)
}

func (e *exabgp) recover(t *testing.T) {
	t.Helper()
	e.write(t, "commands", "")
	e.write(t, "messages", "")
	e.cmd = e.start(t, "env", "exabgp_daemon_user=root", "exabgp_api_ack=false", "exabgp_api_cli=false", "exabgp",
		e.file("exabgp.conf"))
}

func (e *exabgp) stop()  { kill(e.cmd) }
func (e *exabgp) crash() { kill(e.cmd) }

// command has ExaBGP read a command, which the program of its API prints.
func (e *exabgp) command(text string) {
	f, err := os.OpenFile(e.file("commands"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, _ = fmt.Fprintf(f, "neighbor %s %s\n", e.manx, text)
		_ = f.Close()
	}
}

// exabgpMessage is a line for the program of the API.
type exabgpMessage struct {
	Neighbor struct {
		State   string
		Message struct {
			Update struct {
				Attribute json.RawMessage
				Announce  map[string]map[string][]json.RawMessage // by family and next hop
				Withdraw  map[string][]json.RawMessage
			}
		}
	}
}

// table has the paths of each prefix that were announced in this session and not withdrawn.
func (e *exabgp) table() (table map[string][]string, state string) {
	text, _ := os.ReadFile(e.file("messages"))
	table = map[string][]string{}
	type nlri struct {
		NLRI string
		Path string `json:"path-information"`
	}
	paths := map[nlri]string{}
	for line := range strings.Lines(string(text)) {
		var m exabgpMessage
		if json.Unmarshal([]byte(line), &m) != nil {
			continue // the last line may still be incomplete
		}
		if s := m.Neighbor.State; s != "" {
			state = s
			clear(paths)
		}
		read := func(raw json.RawMessage) (n nlri) {
			_ = json.Unmarshal(raw, &n)
			return n
		}
		for _, list := range m.Neighbor.Message.Update.Withdraw {
			for _, raw := range list {
				delete(paths, read(raw))
			}
		}
		for _, hops := range m.Neighbor.Message.Update.Announce {
			for hop, list := range hops {
				for _, raw := range list {
					n := read(raw)
					paths[n] = fmt.Sprintf("%s next hop %s %s", n.NLRI, hop, m.Neighbor.Message.Update.Attribute)
				}
			}
		}
	}
	for n, text := range paths {
		table[n.NLRI] = append(table[n.NLRI], text)
	}
	return table, state
}

func (e *exabgp) routes(p netip.Prefix) string {
	table, _ := e.table()
	return strings.Join(table[p.String()], "\n")
}

func (e *exabgp) paths(p netip.Prefix) int {
	table, _ := e.table()
	return len(table[p.String()])
}

func (e *exabgp) sessions() string {
	_, state := e.table()
	if state == "up" {
		return "BGP state: Established"
	}
	return "BGP state: " + state
}

func (e *exabgp) refresh() {
	afi := "ipv4"
	if e.manx.Is6() {
		afi = "ipv6"
	}
	e.command("announce route-refresh " + afi + " unicast")
}

func (e *exabgp) reset() { e.command("teardown 4") }

func (e *exabgp) shows(a attribute, value string) string {
	switch a {
	case localPref:
		return `"local-preference": ` + value
	case asPath:
		return `"as-path": [ ` + strings.ReplaceAll(value, " ", ", ") + " ]"
	case communities:
		return `"community": [ [ ` + strings.ReplaceAll(value, ":", ", ") + " ]"
	case largeCommunities:
		return `"large-community": [ [ ` + strings.Replace(strings.Replace(value, ":", ", ", 1), ":", " , ", 1) + " ]"
	case originator:
		return `"originator-id": "` + value
	}
	return `"cluster-list": [ "` + value
}
