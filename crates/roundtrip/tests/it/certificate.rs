//! A certificate that nobody but the tests trusts.

/// A folder with a certificate for `localhost` and its key, which the server may read.
pub(crate) fn certificate() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout key.pem \
                -out cert.pem -subj /CN=localhost -addext subjectAltName=DNS:localhost \
                -addext basicConstraints=critical,CA:FALSE 2> /dev/null \
                && if [ $(id -u) = 0 ]; then chown -R postgres .; fi";
    let made = std::process::Command::new("sh").arg("-c").arg(make).current_dir(folder.path()).status().unwrap();
    assert!(made.success(), "openssl: {made}");
    folder
}
