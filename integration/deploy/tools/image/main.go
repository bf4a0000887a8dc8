// Command image writes container images of Manx without a container engine: an archive in the OCI layout that also has
// Docker's manifest.json, so that `ctr images import`, `podman load`, `skopeo` and `docker load` read it. The same
// programs give the same bytes.
//
//	image --name NAME --version VERSION --commit COMMIT --arch amd64[,arm64] --programs FOLDER \
//		--links FILE --licenses FOLDER --to FILE
//
// FOLDER of the programs has a folder for each architecture. With several architectures there is one name for all of
// them (an image index), which docker load does not read.
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// settings select the content of an image.
type settings struct {
	name, version, commit string
	programs, licenses    string // folders
	links                 string // file
	created               time.Time
}

func main() {
	var s settings
	flag.StringVar(&s.name, "name", "manxnet/manx", "name of the image")
	flag.StringVar(&s.version, "version", "dev", "its tag")
	flag.StringVar(&s.commit, "commit", "unknown", "commit that it is made from")
	flag.StringVar(&s.programs, "programs", "", "folder of the programs, one for each architecture below it")
	flag.StringVar(&s.licenses, "licenses", "", "folder of licences; empty: none")
	flag.StringVar(&s.links, "links", "", "file with lines PATH TARGET, the symbolic links of the image; empty: none")
	archs := flag.String("arch", "amd64", "architectures, separated by commas")
	to := flag.String("to", "", "file to write")
	flag.Parse()
	if s.programs == "" || *to == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := s.run(strings.Split(*archs, ","), *to); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// run writes the archive and prints the digest of the image.
func (s settings) run(archs []string, to string) error {
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return fmt.Errorf("SOURCE_DATE_EPOCH=%s: %w", epoch, err)
		}
		s.created = time.Unix(seconds, 0).UTC()
	}
	var images []platformImage
	for _, arch := range archs {
		image, err := s.image(arch)
		if err != nil {
			return err
		}
		images = append(images, platformImage{arch, image})
	}
	digest, err := writeArchive(to, s.name, s.version, images)
	if err != nil {
		return err
	}
	if len(archs) == 1 {
		if err := s.writeBOM(strings.TrimSuffix(to, ".tar")+bomSuffix, archs[0], digest); err != nil {
			return err
		}
	}
	fmt.Printf("%s  %s:%s  %s\n", digest, s.name, s.version, to)
	return nil
}
