//! Compiles the shim against the libtorch that `torch-sys` found, and sees to it that the program finds it again.

#[cfg(feature = "torch")]
use std::path::{Path, PathBuf};

#[cfg(not(feature = "torch"))]
fn main() {}

#[cfg(feature = "torch")]
fn main() {
    println!("cargo:rerun-if-changed=shim/shim.cpp");
    // libtorch's folder, as torch-sys hands it on.
    let libraries = PathBuf::from(std::env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys says where libtorch is"));
    let torch = libraries.parent().expect("libtorch/lib has a parent").to_path_buf();
    let has_cuda = libraries.join("libtorch_cuda.so").exists();
    let cuda_headers = cuda_headers(&torch).filter(|_| has_cuda);
    if has_cuda && cuda_headers.is_none() {
        println!(
            "cargo:warning=no CUDA headers beside libtorch: built without CUDA graphs, which makes training slower"
        );
    }
    let mut shim = cc::Build::new();
    shim.cpp(true)
        .std("c++17")
        .warnings(false)
        .include(torch.join("include"))
        .include(torch.join("include/torch/csrc/api/include"))
        .file("shim/shim.cpp");
    if let Some(headers) = &cuda_headers {
        shim.include(headers).define("AFTERFIT_CUDA", None);
    }
    shim.compile("afterfit_shim");
    println!("cargo:rustc-link-search=native={}", libraries.display());
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", libraries.display());
    // Nothing names a symbol of libtorch_cuda: without this the linker drops it, and CUDA is "not available".
    let mut needed = vec!["torch", "torch_cpu", "c10"];
    if has_cuda {
        needed.extend(["torch_cuda", "c10_cuda"]);
    }
    let needed: String = needed.iter().map(|name| format!(",-l{name}")).collect();
    println!("cargo:rustc-link-arg=-Wl,--push-state,--no-as-needed{needed},--pop-state");
}

#[cfg(feature = "torch")]
/// Where the CUDA headers lie: beside a PyTorch from a package index, or where the toolkit puts it.
fn cuda_headers(torch: &Path) -> Option<PathBuf> {
    println!("cargo:rerun-if-env-changed=CUDA_HOME");
    let beside = torch.parent().map(|packages| packages.join("nvidia/cu13/include"));
    let home = std::env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("include"));
    let usual = PathBuf::from("/usr/local/cuda/include");
    [beside, home, Some(usual)].into_iter().flatten().find(|folder| folder.join("crt/host_config.h").exists())
}
