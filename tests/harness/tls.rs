//! TLS before a server that speaks none, with certificates of an authority of its own.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};

/// A private authority's certificate, and one of its for 127.0.0.1 with its key, as PEM files.
pub struct Certificates {
    /// Of the authority.
    pub authority: PathBuf,
    /// Of the server.
    pub certificate: PathBuf,
    /// The server's key.
    pub key: PathBuf,
}

impl Certificates {
    /// Made by openssl, in `directory`.
    pub fn make(directory: &Path) -> Self {
        let script = "set -e; cd \"$0\"
            openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj '/CN=test authority'
            openssl req -newkey rsa:2048 -nodes -keyout key.pem -out request.pem -subj '/CN=127.0.0.1'
            printf 'subjectAltName=IP:127.0.0.1\\nbasicConstraints=CA:FALSE\\n' > extensions
            openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -out cert.pem -days 2 -extfile extensions";
        let output = Command::new("sh").arg("-c").arg(script).arg(directory).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let at = |name: &str| directory.join(name);
        Self { authority: at("ca.pem"), certificate: at("cert.pem"), key: at("key.pem") }
    }
}

/// Listens on the loopback, and passes what it hears on to `upstream`. Must be called within a runtime, and ends with it.
pub async fn before(upstream: SocketAddr, certificates: &Certificates) -> SocketAddr {
    let chain = CertificateDer::pem_file_iter(&certificates.certificate).unwrap().map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(&certificates.key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // A client that does not trust us goes away: no fault here.
                let Ok(mut client) = acceptor.accept(stream).await else { return };
                let mut server = TcpStream::connect(upstream).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    address
}
