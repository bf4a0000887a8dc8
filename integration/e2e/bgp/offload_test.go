package bgp

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/dataplane/kernel/nettest"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// TestSpoiledChecksums gives a node a network card that computes no checksums within tunnels. Ping works between its
// pod and others, and a transfer does not, which manxctl status shows. With --offload-check=repair it works again.
func TestSpoiledChecksums(t *testing.T) {
	v := newVXLAN(t, "k", "Always")
	v.reaches(t)
	far := v.pods[v.n3]
	must(t, v.transfer(far))
	eventually(t, func() error { return v.checksums("applied") })
	v.spoil(t)
	eventually(t, func() error { return lab.Ping(v.pods[v.n1].Namespace, far.IP4()) }) // the cable is plugged in again
	if err := v.transfer(far); err == nil {
		t.Fatal("the card spoils checksums, and a transfer arrives")
	}
	_, err := v.n1.Manxctl("retry") // or wait an hour
	must(t, err)
	eventually(t, func() error { return v.checksums("blocked") })
	out, err := v.n1.Manxctl("status")
	must(t, err)
	text := strings.Join(strings.Fields(out), " ")
	for _, part := range []string{"device vxlan.calico: packets through it whose checksum is left to interface eth0 " +
		"(driver veth", "do not get to node n", "ethtool -K vxlan.calico tx-checksum-ip-generic off"} {
		if !strings.Contains(text, part) {
			t.Errorf("manxctl status lacks %q:\n%s", part, out)
		}
	}
	must(t, v.n1.Manxd().Stop(limit))
	must(t, v.n1.StartManxd(slices.Concat(v.n1.EmbedDatastore(), noBGP, []string{"--offload-check=repair"})...))
	must(t, v.n1.Ready(limit))
	eventually(t, func() error { return errors.Join(v.transfer(far), v.checksums("applied")) })
}

// spoil has the cable of n1 lead through a card that computes no checksums within tunnels.
func (v *vxlan) spoil(t *testing.T) {
	middle, tor := nettest.Bare(t), v.ToRs[0].Namespace
	must(t, namespace.Batch(tor, "link set p0 down", "link set p0 nomaster", "link set p0 name card1",
		"link set card1 netns "+middle, "link add p0 type veth peer name card2 netns "+middle,
		"link set p0 master rack1 up"))
	nettest.Relay(t, middle, [2]string{"card1", "card2"})
}

// checksums waits until both devices of n1 have a phase.
func (v *vxlan) checksums(phase string) error {
	out, err := v.n1.Manxctl("get", "hostobjects", "checksum-offload", "-o", "wide")
	text := strings.Join(strings.Fields(out), " ")
	for _, device := range []string{"vxlan.calico", "vxlan-v6.calico"} {
		if want := "checksum-offload " + device + " " + phase + " "; err == nil && !strings.Contains(text, want) {
			err = fmt.Errorf("no row %q in\n%s", want, out)
		}
	}
	return err
}
