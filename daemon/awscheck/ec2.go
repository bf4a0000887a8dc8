package awscheck

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// ec2 is this host as an instance of EC2. Its metadata service, which has the credentials of its role, answers on the
// host's own link. Nothing but the region follows from these answers for the place of EC2's API, and that place has to
// prove its name by TLS.
type ec2 struct {
	metadata *imds.Client
	endpoint func(region string) (string, error) // of EC2's API
	api      func() *http.Client
}

func newEC2() *ec2 {
	return newEC2At("http://169.254.169.254", endpointOf, sync.OnceValue(func() *http.Client {
		system, _ := x509.SystemCertPool() // nil for none
		return client(http.ProxyFromEnvironment, authorities(system))
	}))
}

// authorities returns those of the host, or, if it has none, as in the image, those of Mozilla.
func authorities(system *x509.CertPool) *x509.CertPool {
	pool := x509.NewCertPool()
	if system != nil && !system.Equal(pool) {
		return system
	}
	for root := range bundle.Roots() {
		if c, err := x509.ParseCertificate(root.Certificate); err == nil {
			pool.AddCertWithConstraint(c, root.Constraint)
		}
	}
	return pool
}

// newEC2At leaves out what the SDK of AWS would take from the environment: another place of the metadata service, the
// first version of its protocol, which answers to forged requests, and a proxy, which would read the credentials.
func newEC2At(metadata string, endpoint func(string) (string, error), api func() *http.Client) *ec2 {
	return &ec2{endpoint: endpoint, api: api, metadata: imds.New(imds.Options{Endpoint: metadata,
		ClientEnableState: imds.ClientEnabled, EnableFallback: aws.FalseTernary, HTTPClient: client(nil, nil),
		Retryer: aws.NopRetryer{}})}
}

// longestAnswer is more than any answer needs.
const longestAnswer = 64 << 10

// client returns an HTTP client that follows no redirection, which could lead anywhere, and reads no endless answer.
func client(proxy func(*http.Request) (*url.URL, error), authorities *x509.CertPool) *http.Client {
	return &http.Client{Transport: bounded{&http.Transport{Proxy: proxy, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: authorities}}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// bounded cuts long answers off.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(answer.Body, longestAnswer), answer.Body}
	}
	return answer, err
}

var regions = regexp.MustCompile(`^(af|ap|ca|cn|eu|il|me|mx|sa|us)(-[a-z]+)+-[0-9]{1,2}$`)

// endpointOf returns the URL of EC2's API in a region. The partitions without a connection to the Internet are not
// known.
func endpointOf(region string) (string, error) {
	switch {
	case !regions.MatchString(region), strings.Contains(region, "-iso"):
		return "", fmt.Errorf("the instance is in region %.40q, whose API Manx does not know: set the check there, "+
			"and "+setting+" to DoNothing", region)
	case strings.HasPrefix(region, "cn-"):
		return "https://ec2." + region + ".amazonaws.com.cn/", nil
	}
	return "https://ec2." + region + ".amazonaws.com/", nil
}

// SetSourceDestCheck implements instance.
func (e *ec2) SetSourceDestCheck(ctx context.Context, on bool) error {
	nic, region, err := e.identity(ctx)
	if err != nil {
		return fmt.Errorf("the metadata service of EC2 does not answer (%w): if this host is no instance of EC2, set "+
			setting+" to DoNothing; otherwise allow version 2 of the service there", short(err))
	}
	endpoint, err := e.endpoint(region)
	if err != nil {
		return err
	}
	credentials, err := ec2rolecreds.New(func(o *ec2rolecreds.Options) { o.Client = e.metadata }).Retrieve(ctx)
	if err != nil {
		return fmt.Errorf("the instance has no credentials (%w): give it a role that allows "+permission, short(err))
	}
	body := url.Values{"Action": {"ModifyNetworkInterfaceAttribute"}, "Version": {"2016-11-15"},
		"NetworkInterfaceId": {nic}, "SourceDestCheck.Value": {strconv.FormatBool(on)}}.Encode()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
	sum := sha256.Sum256([]byte(body))
	if err := v4.NewSigner().SignHTTP(ctx, credentials, r, hex.EncodeToString(sum[:]), "ec2", region,
		time.Now()); err != nil {
		return fmt.Errorf("sign the request to EC2: %w", err)
	}
	answer, err := e.api().Do(r)
	if err != nil {
		return fmt.Errorf("EC2 does not answer (%w): this host has to reach %s, over HTTPS_PROXY if that is set",
			short(err), r.URL.Host)
	}
	defer answer.Body.Close()
	return result(answer, nic)
}

// permission is what the role of the instance needs.
const permission = "ec2:ModifyNetworkInterfaceAttribute"

// identity returns the primary interface of the instance, and its region.
func (e *ec2) identity(ctx context.Context) (nic, region string, err error) {
	mac, err := e.text(ctx, "mac")
	if err != nil {
		return "", "", err
	}
	if _, err := net.ParseMAC(mac); err != nil {
		return "", "", err
	}
	if nic, err = e.text(ctx, "network/interfaces/macs/"+mac+"/interface-id"); err != nil {
		return "", "", err
	}
	region, err = e.text(ctx, "placement/region")
	return nic, region, err
}

// text returns an item of the metadata.
func (e *ec2) text(ctx context.Context, path string) (string, error) {
	out, err := e.metadata.GetMetadata(ctx, &imds.GetMetadataInput{Path: path})
	if err != nil {
		return "", err
	}
	defer out.Content.Close()
	b, err := io.ReadAll(out.Content)
	return strings.TrimSpace(string(b)), err
}

// answerXML is an answer of EC2's Query API: a result, or errors.
type answerXML struct {
	Return bool `xml:"return"`
	Errors []struct {
		Code, Message string
	} `xml:"Errors>Error"`
}

// result returns the error in an answer of EC2.
func result(answer *http.Response, nic string) error {
	var x answerXML
	body, err := io.ReadAll(answer.Body)
	if err == nil {
		err = xml.Unmarshal(body, &x)
	}
	switch {
	case len(x.Errors) > 0:
		err := fmt.Errorf("EC2 refuses to change %s: %s: %s", nic, printable(x.Errors[0].Code),
			printable(x.Errors[0].Message))
		if answer.StatusCode == http.StatusForbidden {
			err = fmt.Errorf("%w; the role of the instance needs the permission "+permission, err)
		}
		return err
	case err == nil && answer.StatusCode == http.StatusOK && x.Return:
		return nil
	}
	return fmt.Errorf("EC2 does not say that it has changed %s: it answers %q", nic, printable(answer.Status))
}

// longestText is the length of a text of others in a notice.
const longestText = 200

// printable makes a text of others fit for a notice.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
	if len(text) > longestText {
		text = strings.ToValidUTF8(text[:longestText], "") + "..."
	}
	return text
}

// short returns the cause of an error of the SDK, which names each of its layers.
func short(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("it takes too long")
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op
	}
	return errors.New(printable(err.Error()))
}
