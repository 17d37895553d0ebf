//! What is deployed: checked as far as it can be where no containers run.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::Shell;
use crate::fuzz::tools;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// The compose file as JSON, read by a YAML reader that is not ours.
fn compose() -> Value {
    let read = "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)";
    let output = Command::new(tools().join("python/bin/python"))
        .args(["-c", read])
        .arg(deploy().join("compose.yaml"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_compose_file_fits_its_configuration() {
    let compose = compose();
    let services = compose["services"].as_object().unwrap();
    // Names that services call each other by.
    let config = std::fs::read_to_string(deploy().join("roundtrip.toml")).unwrap();
    for (name, url) in [("postgres", "@postgres/"), ("redis", "//redis")] {
        assert!(services.contains_key(name) && config.contains(url), "{name}");
    }
    for name in ["roundtrip", "sender"] {
        let service = &services[name];
        let file = service["build"]["dockerfile"].as_str().unwrap();
        assert!(deploy().join("..").join(file).exists(), "{file}");
        assert_eq!(service["volumes"][0], "./roundtrip.toml:/etc/roundtrip/roundtrip.toml:ro");
        let needed: Vec<&String> = service["depends_on"].as_object().unwrap().keys().collect();
        assert!(needed.iter().all(|name| services.contains_key(*name)), "{needed:?}");
    }
    // One image, and each is asked where it listens.
    assert_eq!(services["roundtrip"]["image"], services["sender"]["image"]);
    for (name, listen) in [("roundtrip", "0.0.0.0:8080"), ("sender", "0.0.0.0:9090")] {
        let asked: Vec<&str> = services[name]["healthcheck"]["test"]
            .as_array()
            .unwrap()
            .iter()
            .map(|word| word.as_str().unwrap())
            .collect();
        let (url, command) = asked[2..].split_last().unwrap();
        assert!(config.contains(&format!("listen = \"{listen}\"")), "{name}");
        assert_eq!(*url, format!("http://{}", listen.replace("0.0.0.0", "127.0.0.1")));
        let nobody = [command, &["http://127.0.0.1:1"]].concat();
        assert!(Shell::alone(Path::new("/")).refuses(&nobody).contains("nobody answers there"), "{nobody:?}");
    }
    let redis = services["redis"]["command"].to_string();
    for setting in ["appendonly\",\"yes", "appendfsync\",\"always", "maxmemory-policy\",\"noeviction"] {
        assert!(redis.contains(setting), "{redis} without {setting}");
    }
    for volume in ["postgres", "redis"] {
        assert!(compose["volumes"].as_object().unwrap().contains_key(volume));
    }
    let said = Shell::alone(&deploy()).with("ROUNDTRIP__API__LISTEN", "0.0.0.0:8080").says(&["check", "--offline"]);
    assert!(said.contains("all is well: 2 routes, 2 destinations"), "{said}");
}

/// What a container or a unit runs is what the command takes.
#[test]
fn what_is_run_is_what_the_command_takes() {
    let shell_folder = tempfile::tempdir().unwrap();
    let shell = Shell::alone(shell_folder.path());
    let takes = |arguments: &[&str]| {
        let done = shell.run(arguments);
        assert!(done.code == Some(1) && done.err.contains("cannot be read"), "{arguments:?}: {done:?}");
    };
    let compose = compose();
    let sender = compose["services"]["sender"]["command"].as_array().unwrap();
    takes(&sender.iter().map(|word| word.as_str().unwrap()).collect::<Vec<_>>());
    let image = std::fs::read_to_string(deploy().join("Dockerfile")).unwrap();
    let words = image.lines().find_map(|line| line.strip_prefix("CMD ")).unwrap();
    let words: Vec<String> = serde_json::from_str(words).unwrap();
    takes(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let unit = std::fs::read_to_string(deploy().join("roundtrip.service")).unwrap();
    let ours = unit.lines().filter(|line| line.contains("/usr/local/bin/roundtrip"));
    for line in ours.filter_map(|line| line.strip_prefix("ExecStart").and_then(|line| line.split_once('='))) {
        let words: Vec<&str> = line.1.split(' ').skip(1).collect();
        takes(&words);
    }
}

#[test]
fn systemd_takes_the_unit() {
    let folder = tempfile::tempdir().unwrap();
    // It looks whether what is to be run is there.
    let unit = std::fs::read_to_string(deploy().join("roundtrip.service")).unwrap();
    let unit = unit.replace("/usr/local/bin/roundtrip", crate::program::PROGRAM);
    let file = folder.path().join("roundtrip.service");
    std::fs::write(&file, unit).unwrap();
    let looked = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file).output();
    let looked = looked.expect("systemd-analyze is there where systemd is");
    let said = String::from_utf8_lossy(&looked.stderr);
    assert!(!said.contains("roundtrip.service"), "{said}");
}
