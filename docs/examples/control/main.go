// Command control prints the BGP sessions of a node, by the control API of its manxd: control HOST:PORT.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func main() {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(must(os.ReadFile("ca.pem")))
	pair := must(tls.LoadX509KeyPair("reader.pem", "reader-key.pem"))
	mutual := credentials.NewTLS(&tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}})
	conn := must(grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(mutual)))
	list := must(manxv1.NewManxClient(conn).ListPeers(context.Background(), &manxv1.ListPeersRequest{}))
	for _, p := range list.GetPeers() {
		fmt.Printf("%s AS %d %s: %s\n", p.GetAddress(), p.GetPeerAs(), p.GetPhase(), p.GetReason())
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
