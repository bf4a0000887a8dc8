package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// resolvePodCIDRs returns the configuration for another IPAM plugin. It replaces the words usePodCidr and
// usePodCidrIPv6 in the subnets of a plugin such as host-local by the CIDRs of this node.
func (c *call) resolvePodCIDRs(ctx context.Context) (json.RawMessage, error) {
	if !c.usesPodCIDRs() {
		return c.q.Config, nil
	}
	o, err := c.store.Get(ctx, model.ResourceKey(model.KindNode, c.work.Node))
	if err != nil {
		return nil, fmt.Errorf("ipam.subnet = usePodCidr: %w", err)
	}
	node, ok := o.Value.(*model.Node)
	if !ok {
		return nil, fmt.Errorf("ipam.subnet = usePodCidr: %w", o.Err)
	}
	config, err := c.putSubnets(node.Status.PodCIDRs)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", c.work.Node, err)
	}
	return config, nil
}

// everyAddress is for plugins that require subnets although they release by container: the node may be deleted.
var everyAddress = []string{"0.0.0.0/0", "::/0"}

func (c *call) usesPodCIDRs() bool {
	return bytes.Contains(bytes.ToLower(c.q.Config), []byte("usepodcidr"))
}

// putSubnets returns the configuration with these CIDRs in it.
func (c *call) putSubnets(cidrs []string) (json.RawMessage, error) {
	var conf map[string]any
	d := json.NewDecoder(bytes.NewReader(c.q.Config))
	d.UseNumber()
	if err := d.Decode(&conf); err != nil {
		return nil, err
	}
	if err := replaceSubnets(conf["ipam"], cidrs); err != nil {
		return nil, err
	}
	return json.Marshal(conf)
}

// replaceSubnets replaces the subnet of the IPAM section and those of its ranges.
func replaceSubnets(section any, cidrs []string) error {
	switch v := section.(type) {
	case []any:
		for _, element := range v {
			if err := replaceSubnets(element, cidrs); err != nil {
				return err
			}
		}
	case map[string]any:
		if word, ok := v["subnet"].(string); ok {
			subnet, err := podCIDR(word, cidrs)
			if err != nil {
				return err
			}
			v["subnet"] = subnet
		}
		return replaceSubnets(v["ranges"], cidrs)
	}
	return nil
}

// podCIDR returns the subnet for a word; any other text is returned unchanged.
func podCIDR(word string, cidrs []string) (string, error) {
	v4 := strings.EqualFold(word, "usePodCidr")
	if !v4 && !strings.EqualFold(word, "usePodCidrIPv6") {
		return word, nil
	}
	for _, text := range cidrs {
		if p, err := netip.ParsePrefix(text); err == nil && p.Addr().Is4() == v4 {
			return text, nil
		}
	}
	return "", fmt.Errorf("status.podCIDRs = %q: holds no CIDR for ipam.subnet = %q", cidrs, word)
}
