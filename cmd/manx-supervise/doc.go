// Command manx-supervise runs manxd in a container, and starts it again when it crashes.
//
//	manx-supervise PROGRAM [ARGUMENT...]
//
// A container whose process ends waits in the kubelet's back-off, up to five minutes; BGP peers keep the routes of a
// node whose daemon is away for two. So the daemon is started again in the same container: at once if it ran for a
// second, else a second after its last start.
//
// The end of PROGRAM with exit code 0 or 2 (a setting that can never work), and any end after SIGTERM or SIGINT, is the
// end of manx-supervise, with the same exit code; a signal N is exit code 128+N. Signals are passed on, orphans are
// reaped, standard output and error are inherited. PROGRAM gets the record of its earlier ends in the environment
// (package restarts), and is killed if manx-supervise is.
//
// It is a program of its own: a subcommand of manxd would take 61 MB of memory on each node, this takes 3 MB.
package main
