//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"

	"github.com/containernetworking/cni/pkg/skel"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/cni"
)

// buildVersion is set when the binary is linked.
var buildVersion = "dev"

// commands are the commands of manx-cni-direct, which this program executes for them.
var commands = map[string]bool{"install": true, "uninstall": true, "-t": true, "help": true, "--help": true, "-h": true,
	"-upgrade": true, "--upgrade": true}

func main() {
	if filepath.Base(os.Args[0]) == "install" { // its name in the images of Calico
		os.Args = append([]string{"manx-cni", "install", "--as-calico"}, os.Args[1:]...)
	}
	if len(os.Args) > 1 {
		if os.Args[1] == "-v" || os.Args[1] == "--version" {
			os.Stdout.WriteString(buildVersion + "\n")
			return
		}
		if commands[os.Args[1]] {
			fmt.Fprintln(os.Stderr, becomeDirect(nil))
			os.Exit(1)
		}
	}
	// There is one thing to do at a time. Threads that look for work would cost more than they do.
	runtime.GOMAXPROCS(1)
	// A killed runtime does not read the result: the ADD must then be undone, which the signal would prevent.
	signal.Ignore(unix.SIGPIPE)
	p := &cni.Plugin{Getenv: os.Getenv, Stdout: os.Stdout, Log: logLine,
		Backend: func(c *cni.Config) cni.Backend { return cni.Socket(c.Socket()) }}
	funcs := p.Funcs(cni.IsIPAM(os.Args[0]))
	for _, f := range []*func(*skel.CmdArgs) error{&funcs.Add, &funcs.Check, &funcs.Del, &funcs.GC, &funcs.Status} {
		*f = orDirect(*f)
	}
	skel.PluginMainFuncs(funcs, cni.Versions, "CNI plugin manx-cni "+buildVersion)
}

// orDirect repeats a call with manx-cni-direct if manxd does not answer. All calls can be repeated.
func orDirect(do func(*skel.CmdArgs) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		err := do(args)
		if !errors.Is(err, cni.ErrNoAnswer) {
			return err
		}
		return cni.TryAgain("nobody answers for this node", errors.Join(err, becomeDirect(args.StdinData)))
	}
}
