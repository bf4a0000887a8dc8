package overlay

import (
	"testing"

	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

func TestMTU(t *testing.T) {
	ipip := func(mtus ...int) (list []Device) {
		for _, mtu := range mtus {
			on, f := true, model.FelixConfigurationSpec{}
			f.IPIPEnabled, f.IPIPMTU = &on, &mtu
			list = append(list, Devices(&f, ippool.Table{}, nil)...)
		}
		return list
	}
	for _, c := range []struct {
		rule               string
		devices            []Device
		host, tunnel, pods int
	}{
		{"no tunnel", nil, 1500, 0, 1500},
		{"the tunnel's header counts with IPIP", ipip(0), 1500, 1480, 1480},
		{"ipipMTU wins", ipip(1400), 1500, 1400, 1400},
		{"a tunnel larger than the host does not make pods larger", ipip(9000), 1500, 9000, 1500},
		{"the smallest of several tunnels counts", ipip(1300, 1200, 1400), 1500, 1300, 1200},
	} {
		tunnel := 0
		if len(c.devices) > 0 {
			tunnel = c.devices[0].MTUOn(c.host)
		}
		if pods := PodMTU(c.devices, c.host); tunnel != c.tunnel || pods != c.pods {
			t.Errorf("%s: tunnel %d, pods %d; want %d, %d", c.rule, tunnel, pods, c.tunnel, c.pods)
		}
	}
}
