package main

import (
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore/etcd/embedded"
)

// clientLife is the default validity of another node's certificate. Its end disconnects a node from the datastore, and
// only its administrator can renew it.
const clientLife = 10 * 365 * 24 * time.Hour

// clientFolder is the suggested folder for the files on the other host.
const clientFolder = "/etc/manx/etcd"

func clientCertificateCommand(o *options) *cobra.Command {
	validFor := clientLife
	cmd := &cobra.Command{
		Use:   "client-certificate NAME FOLDER",
		Short: "Make a certificate for another host that uses the embedded datastore of this one",
		Long: `client-certificate makes FOLDER and writes into it ca.crt, client.crt and client.key, with which the host
NAME may read and change everything in the embedded datastore of this host, and prints the settings of that host. It
works while manxd runs; manxd must have been started with --embedded-listen before.

A certificate cannot be taken back. To shut out all clients, end manxd, remove the folder pki in the data directory,
start manxd, and make new certificates.`,
		Args: func(cmd *cobra.Command, args []string) error { return usage(cobra.ExactArgs(2)(cmd, args)) },
		RunE: func(cmd *cobra.Command, args []string) error {
			authority, err := embedded.Authority(o.datastore.dataDir)
			if err != nil {
				return err
			}
			if err := authority.WriteClient(args[1], args[0], validFor); err != nil {
				return fmt.Errorf("client certificate: %w", err)
			}
			return explainBundle(cmd.OutOrStdout(), o.datastore.embeddedListen, args[0], args[1], validFor)
		},
	}
	cmd.Flags().DurationVar(&validFor, "valid-for", validFor,
		"how long the certificate is valid, in hours (8760h is a year)")
	return cmd
}

// explainBundle prints instructions for the files in folder. listen is the value of --embedded-listen, if it is known
// here.
func explainBundle(w io.Writer, listen, name, folder string, validFor time.Duration) error {
	hint := ""
	a, err := netip.ParseAddrPort(listen)
	switch {
	case err != nil:
		listen, hint = "ADDRESS:PORT", "\nADDRESS:PORT is the value of --embedded-listen of manxd on this host.\n"
	case a.Addr().IsUnspecified():
		listen, hint = fmt.Sprint("ADDRESS:", a.Port()), "\nADDRESS is an address of this host.\n"
	}
	_, err = fmt.Fprintf(w, `%[1]s holds ca.crt, client.crt and client.key for %[2]s, valid until %[3]s.
Copy the folder to %[2]s as %[4]s, readable there for root and the group of manxd alone
(chown -R root:manx %[4]s; chmod -R u=rwX,g=rX,o= %[4]s), and add to /etc/manx/manxd.env:

ETCD_ENDPOINTS=https://%[5]s
ETCD_CA_CERT_FILE=%[4]s/ca.crt
ETCD_CERT_FILE=%[4]s/client.crt
ETCD_KEY_FILE=%[4]s/client.key
%[6]s`, folder, name, time.Now().Add(validFor).Format(time.DateOnly), clientFolder, listen, hint)
	return err
}
