package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

// delegateAdd calls another IPAM plugin for addresses, unless an earlier ADD of the container already did.
func (c *call) delegateAdd(ctx context.Context, undo *Undo) (*Attachment, []*types.Route, error) {
	r, err := c.request(ctx, StepPrepare, nil)
	if err != nil {
		return nil, nil, err
	}
	if r.Attachment != nil && len(r.Attachment.Addresses) > 0 {
		return r.Attachment, nil, nil
	}
	var result *current.Result
	err = c.step("assign addresses", func() error {
		// A failed call may have assigned addresses, too.
		undo.Push("release the addresses", func(ctx context.Context) error {
			_, err := c.delegate(ctx, "DEL", r.Config)
			return err
		})
		out, err := c.delegate(ctx, "ADD", r.Config)
		if err != nil {
			return err
		}
		given, err := create.CreateFromBytes(out)
		if err == nil {
			result, err = current.NewResultFromResult(given)
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	ips, err := onePerFamily(result)
	return &Attachment{Addresses: ips}, result.Routes, err
}

// delegate runs the configured IPAM plugin in the environment of this plugin, and returns its output.
func (c *call) delegate(ctx context.Context, command string, config []byte) ([]byte, error) {
	name := c.conf.IPAM.Type
	if filepath.Base(name) != name {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("ipam.type = %q", name),
			"must be a name without a folder")
	}
	path, err := c.find(name)
	if err != nil {
		return nil, err
	}
	if len(config) == 0 {
		config = c.args.StdinData
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command)
	cmd.Stdin = bytes.NewReader(config)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	if err == nil {
		return stdout.Bytes(), nil
	}
	var reply types.Error
	if json.Unmarshal(stdout.Bytes(), &reply) == nil && reply.Msg != "" {
		return nil, fmt.Errorf("IPAM plugin %s: %w", name, &reply)
	}
	return nil, fmt.Errorf("IPAM plugin %s: %w: %s%s", name, err, stdout.Bytes(), stderr.Bytes())
}

// find searches the folders of CNI_PATH for a plugin.
func (c *call) find(name string) (string, error) {
	folders := filepath.SplitList(c.Getenv("CNI_PATH"))
	for _, dir := range folders {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("IPAM plugin %s is in none of the folders of CNI_PATH: %q", name, folders)
}

// onePerFamily returns the addresses of an IPAM result, at most one of each family.
func onePerFamily(r *current.Result) ([]netip.Addr, error) {
	var ips []netip.Addr
	for _, ip := range r.IPs {
		if ip == nil {
			return nil, errors.New("the IPAM plugin gave null in place of an address")
		}
		a, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return nil, fmt.Errorf("the IPAM plugin gave %q, which is no address", ip.Address.String())
		}
		a = a.Unmap()
		for _, have := range ips {
			if have.Is4() == a.Is4() {
				return nil, fmt.Errorf("the IPAM plugin gave %s and %s: only one address of each family can be used",
					have, a)
			}
		}
		ips = append(ips, a)
	}
	if len(ips) == 0 {
		return nil, errors.New("the IPAM plugin gave no address")
	}
	return ips, nil
}
