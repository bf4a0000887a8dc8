package speaker

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/bgp"
)

// TestManySessionsWithBIRD has 200 sessions of all kinds at one node: iBGP as in the mesh, eBGP, both families, with
// and without MD5, dialled by the node, by BIRD and by both.
func TestManySessionsWithBIRD(t *testing.T) {
	t.Parallel()
	const sessions = 200
	kinds := []struct {
		family   string
		as       uint32
		md5      bool
		dialling string // "node", "bird" or "both"
	}{
		{"ipv4", 64512, false, "node"}, {"ipv4", 64512, false, "bird"}, {"ipv4", 64600, false, "both"},
		{"ipv4", 64600, true, "bird"}, {"ipv4", 64512, true, "node"}, {"ipv6", 64512, false, "node"},
		{"ipv6", 64600, false, "bird"}, {"ipv6", 64512, true, "both"}, {"ipv4", 64512, true, "bird"},
		{"ipv6", 64600, true, "node"},
	}
	d := birdDesired()
	config := &strings.Builder{}
	config.WriteString(birdHead)
	var ours, theirs []string // BIRD has one session with each address of the node
	for i := range sessions {
		k := kinds[i%len(kinds)]
		here, there, bits := fmt.Sprintf("10.77.1.%d", i+1), fmt.Sprintf("10.77.2.%d", i+1), "/16"
		if k.family == "ipv6" {
			here, there, bits = fmt.Sprintf("fd77::1:%x", i+1), fmt.Sprintf("fd77::2:%x", i+1), "/64"
		}
		ours, theirs = append(ours, here+bits), append(theirs, there+bits)
		s := birdPeer(there, here, k.as)
		s.Passive = k.dialling == "bird"
		extra := ""
		if k.dialling == "node" {
			extra = "passive on; "
		}
		if k.md5 {
			s.Password = fmt.Sprint("secret ", i)
			extra += fmt.Sprintf("password %q;", s.Password)
		}
		if k.as == 64512 && !k.md5 {
			s.Type = bgp.SessionMesh
		}
		d.Sessions = append(d.Sessions, s)
		config.WriteString(birdSession(fmt.Sprint("s", i), there, int(k.as), here, k.family, extra))
	}
	n := newBirdNet(t, ours, theirs)
	n.start(config.String())
	c := startChild(t, n.manx)
	c.set(d)
	c.await("all sessions", func() bool {
		return !slices.ContainsFunc(d.Sessions, func(s bgp.Session) bool {
			return c.sessions[s.Address].Phase != PhaseEstablished
		})
	})
	c.await("BIRD's routes", func() bool {
		return len(c.routes[pfx("10.244.2.0/26")].Paths) > 0 && len(c.routes[pfx("fd00:244:2::/122")].Paths) > 0
	})
	imported := regexp.MustCompile(`Routes: +(\d+) imported`)
	deadline := time.Now().Add(30 * time.Second)
	for {
		seen, lacking := 0, ""
		for block := range strings.SplitSeq(n.birdc("show", "protocols", "all"), "\n\n") {
			var i int
			if _, err := fmt.Sscanf(block, "s%d", &i); err != nil {
				continue
			}
			seen++
			want := map[string]string{"ipv4": "2", "ipv6": "1"}[kinds[i%len(kinds)].family]
			if m := imported.FindStringSubmatch(block); m == nil || m[1] != want {
				lacking = block
			}
		}
		if seen == sessions && lacking == "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("BIRD has %d sessions; one lacks routes of the node:\n%s", seen, lacking)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
