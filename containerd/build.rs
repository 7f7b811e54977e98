//! Generates the gRPC types from the vendored protos, without protoc.

const SERVICES: &[&str] = &[
    "services/snapshots/v1/snapshots.proto",
    "services/content/v1/content.proto",
    "services/images/v1/images.proto",
    "services/leases/v1/leases.proto",
    "services/containers/v1/containers.proto",
    "services/namespaces/v1/namespace.proto",
    "services/version/v1/version.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    tonic_prost_build::configure().compile_fds(protox::compile(SERVICES, ["proto"])?)?;
    Ok(())
}
