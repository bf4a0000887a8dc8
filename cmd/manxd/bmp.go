package main

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/manxnet/manx/bgp/speaker"
)

// bmp parses the BMP collectors.
func (o *bgpOptions) bmp(node string) ([]speaker.BMP, error) {
	policy, err := speaker.ParseBMPPolicy(o.bmpPolicy)
	if err != nil {
		return nil, fmt.Errorf("--bmp-policy: %w", err)
	}
	var list []speaker.BMP
	for text := range strings.SplitSeq(o.bmpCollectors, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		addr, err := netip.ParseAddrPort(text)
		if err != nil || addr.Port() == 0 {
			return nil, fmt.Errorf("--bmp-collector=%s: want ADDRESS:PORT or [IPV6]:PORT, not a name", text)
		}
		list = append(list, speaker.BMP{Collector: addr, Policy: policy, SysName: node, SysDescr: "Manx " + version})
	}
	return list, nil
}
