package kernel

import (
	"net"
	"testing"
)

func TestSentPacketsGrowWithTraffic(t *testing.T) {
	c, err := New("")
	if err != nil {
		t.Skip(err)
	}
	defer c.Close()
	loopback := func(name string) bool { return name == "lo" }
	before, err := c.SentPackets(loopback)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("udp", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 10 {
		_, _ = conn.Write([]byte("x"))
	}
	after, err := c.SentPackets(loopback)
	if err != nil {
		t.Fatal(err)
	}
	if after < before+10 {
		t.Errorf("sent packets on lo: %d, then %d after 10 more", before, after)
	}
	if none, err := c.SentPackets(func(string) bool { return false }); err != nil || none != 0 {
		t.Errorf("interfaces that do not exist sent %d, %v", none, err)
	}
}
