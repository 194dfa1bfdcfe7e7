package daemon

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// With tls.client_ca a client without a certificate of that CA gets no answer at all.
func TestClientCAIsRequired(t *testing.T) {
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	issue := func(name string) (cert []byte, key *ecdsa.PrivateKey) { // signed by itself
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
			DNSNames: []string{"localhost"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
		if cert, err = x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key); err != nil {
			t.Fatal(err)
		}
		return cert, key
	}
	cert, key := issue("server")
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	known, knownKey := issue("known")
	stranger, strangerKey := issue("stranger")
	config, err := loadTLS(write("cert", "CERTIFICATE", cert), write("key", "PRIVATE KEY", der), write("ca", "CERTIFICATE", known))
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.TLS = config
	s.StartTLS()
	defer s.Close()
	for _, c := range []struct {
		name  string
		certs []tls.Certificate
		ok    bool
	}{
		{"none", nil, false},
		{"a stranger's", []tls.Certificate{{Certificate: [][]byte{stranger}, PrivateKey: strangerKey}}, false},
		{"one of the CA", []tls.Certificate{{Certificate: [][]byte{known}, PrivateKey: knownKey}}, true},
	} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: c.certs}}
		resp, err := (&http.Client{Transport: transport}).Get(s.URL)
		if (err == nil) != c.ok {
			t.Errorf("certificate: %s: %v", c.name, err)
		}
		if err == nil {
			resp.Body.Close()
		}
		transport.CloseIdleConnections()
	}
}
