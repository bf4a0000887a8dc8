package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/calicosettings"
	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/dataplane/kernel/device"
	"github.com/manxnet/manx/datastore/connect"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/datastore/settings"
	"github.com/manxnet/manx/datastore/userinfo"
)

const acceptFlag = "accept-settings"

// acceptOptions name the settings of Calico that Manx does not have and that do not keep this node from being ready.
type acceptOptions struct{ list string }

// Flags implements group.
func (o *acceptOptions) Flags(s envflag.Set) {
	s.String(&o.list, acceptFlag, "", "settings of Calico that Manx does not have and that no longer keep this node "+
		"from being ready, comma separated: "+strings.Join(settings.Holding(), ", "), "MANX_ACCEPT_SETTINGS")
}

// Check implements group. Settings that an earlier version lacked may stay in the list: a notice names them.
func (o *acceptOptions) Check() error {
	for _, name := range names(o.list) {
		if !settings.Known(name) {
			return fmt.Errorf("--%s=%s: want %s", acceptFlag, name, strings.Join(settings.Holding(), ", "))
		}
	}
	return nil
}

// explainCalico prints the settings of Calico that are set here, with the source of each and the answer; all: every
// setting that Calico has.
func (o *options) explainCalico(ctx context.Context, out, complaints io.Writer, getenv func(string) string,
	all bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if all {
		fmt.Fprintln(w, "PLACE\tSETTING\tVARIABLE\tWHAT MANX DOES")
		for _, r := range settings.Rows() {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Place, r.Name, r.Variable, r.Answer())
		}
		return w.Flush()
	}
	fmt.Fprintln(out, "The environment and felix.cfg are those that this command sees, which the running manxd need "+
		"not have: run it where manxd runs.")
	in := settings.Input{Local: o.localSettings(), Getenv: getenv, PolicyOnly: o.networking.policyOnly()}
	var err error
	if in.Node, _, err = node.Name(o.node.nameSources()); err != nil {
		return err
	}
	if in.Reader, err = o.readSettings(ctx); err != nil {
		fmt.Fprintf(complaints, "The datastore is not read, so only the settings of this host follow: %v\n", err)
	}
	if h, err := device.Open(); err == nil {
		in.IPVS, _ = h.HasAddress(settings.IPVSInterface)
		h.Close()
	}
	fmt.Fprintln(w, "SETTING\tVALUE\tSOURCE\tWHAT MANX DOES")
	for _, f := range settings.Here(in) {
		answer := f.Answer()
		if f.Danger() && !slices.Contains(names(o.accept.list), f.Name) {
			answer += " (the node is not ready: --" + acceptFlag + ")"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.Name, userinfo.Hide([]byte(f.Value)), f.Source, answer)
	}
	for _, text := range in.Local.Problems {
		fmt.Fprintf(w, "-\t\t%s\tnot used: the line cannot be read\n", text)
	}
	return w.Flush()
}

// readSettings reads the objects with settings from the datastore of the manxd that runs on this host, or of the
// settings.
func (o *options) readSettings(ctx context.Context) (model.Reader, error) {
	ctx, cancel := context.WithTimeout(ctx, kubernetesTimeout)
	defer cancel()
	s := connect.Settings{RunDir: o.host.runDir}
	if kind := o.datastore.kind; kind != connect.Embedded {
		config, _, err := o.datastore.etcd(ctx, zap.NewNop())
		if err != nil {
			return nil, err
		}
		s.Type, s.Etcd, s.Kube = kind, config, o.kubernetes()
	}
	store, err := connect.Open(ctx, s, zap.NewNop())
	if err != nil {
		return nil, err
	}
	defer store.Close() //nolint:errcheck // nothing was written
	set := model.Set{}
	for _, kind := range (*calicosettings.Part)(nil).Needs().Kinds() {
		objects, _, err := store.List(ctx, kind, "")
		if err != nil {
			return nil, err
		}
		for _, object := range objects {
			set[object.Key] = object
		}
	}
	return set, nil
}
