package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
)

// hostOptions have the places on this host where manxd and its workloads meet others.
type hostOptions struct {
	runDir               string
	mtuFile              string
	measurePaths         bool
	offloadCheck         string
	procSysNet           string
	interfacePrefix      string
	endpointStatusPrefix string
	namespace            string // of this daemon's pod, and of the Secrets that it reads
}

const (
	procSysNetFlag   = "proc-sys-net"
	offloadCheckFlag = "offload-check"
)

// The values of --offload-check.
const (
	offloadOff    = "off"
	offloadReport = "report"
	offloadRepair = "repair"
)

// Flags implements group.
func (o *hostOptions) Flags(s envflag.Set) {
	s.String(&o.runDir, "run-dir", "/run/manx", "folder of the control sockets", "MANX_RUN_DIR")
	s.String(&o.mtuFile, "mtu-file", "/var/lib/calico/mtu", "file with the MTU of pods, for the CNI plugin",
		"MANX_MTU_FILE")
	s.Bool(&o.measurePaths, "path-mtu", true, "measure by ICMP echo which packets get to the other nodes, and give "+
		"routes to pods behind a smaller path its MTU", "MANX_PATH_MTU")
	s.String(&o.offloadCheck, offloadCheckFlag, offloadReport, "what manxd does about network cards that spoil the "+
		"checksums of packets in VXLAN: off: nothing; report: ask other nodes by UDP packets, and report lost ones; "+
		"repair: have the kernel compute them, too, if that helps", "MANX_OFFLOAD_CHECK")
	s.String(&o.procSysNet, procSysNetFlag, kernel.DefaultProcSysNet,
		"folder of the kernel's network settings; in a container where it is read-only: the mounted folder of the host",
		"MANX_PROC_SYS_NET")
	s.String(&o.endpointStatusPrefix, "endpoint-status-path-prefix", "", "folder; manxd writes to its "+
		"endpoint-status, for the CNI plugin, which workloads have policy and routes; none: off; empty: "+
		"endpointStatusPathPrefix of FelixConfiguration, else "+endpointstatus.DefaultPathPrefix,
		"FELIX_ENDPOINTSTATUSPATHPREFIX")
	s.String(&o.interfacePrefix, "interface-prefix", "",
		"prefixes of the names of workloads' interfaces, comma separated; empty: interfacePrefix of "+
			"FelixConfiguration, else "+felixconfig.DefaultInterfacePrefix, "FELIX_INTERFACEPREFIX")
	s.String(&o.namespace, "namespace", "", "namespace of the Secrets with BGP passwords, used with a "+
		"Kubernetes API and without --bgp-password-dir; empty: that of this pod, else kube-system", "NAMESPACE",
		"POD_NAMESPACE")
}

// Check implements group. It refuses a folder without network settings, prefixes that no interface can have, and other
// values than those of --offload-check.
func (o *hostOptions) Check() error {
	if o.interfacePrefix != "" && !model.IsInterfacePrefixes(o.interfacePrefix) {
		return fmt.Errorf("--interface-prefix=%s: %s", o.interfacePrefix, model.InterfacePrefixRule)
	}
	if values := []string{offloadOff, offloadReport, offloadRepair}; !slices.Contains(values, o.offloadCheck) {
		return fmt.Errorf("--%s=%s: it is one of %s", offloadCheckFlag, o.offloadCheck, strings.Join(values, ", "))
	}
	if err := kernel.CheckProcSysNet(o.procSysNet); err != nil {
		return fmt.Errorf("--%s=%s: %w", procSysNetFlag, o.procSysNet, err)
	}
	return nil
}

// noIPv6 reports whether the default IPv6 pool is disabled, by calico/node's rule.
func (o *options) noIPv6() bool {
	supported := o.localSettings().Spec.IPv6Support
	return supported != nil && !*supported || !kernel.HasIPv6(o.host.procSysNet)
}

// endpointStatusDir returns the folder of the endpoint status files for the CNI plugin, given endpointStatusPathPrefix
// of FelixConfiguration; empty for none.
func (o *hostOptions) endpointStatusDir(felix string) string {
	prefix := cmp.Or(o.endpointStatusPrefix, felix, endpointstatus.DefaultPathPrefix)
	if strings.EqualFold(prefix, "none") {
		return ""
	}
	return filepath.Join(prefix, endpointstatus.FolderName)
}
