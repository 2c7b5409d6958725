// What libtorch can do and tch does not offer: SGD in one kernel, a stream of our own, CUDA graphs.
// Every function returns nullptr, or a message that the caller frees.

#include <cstdlib>
#include <cstring>
#include <exception>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/ops/_fused_sgd.h>
#include <c10/core/GradMode.h>

#ifdef AFTERFIT_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace {
template <class Body> char *guarded(Body body) {
  try {
    body();
    return nullptr;
  } catch (const std::exception &error) {
    return strdup(error.what());
  }
}
} // namespace

extern "C" {

// w ← w − η·d with d = g + decay·w, through the momentum buffer when there is one (torch.optim.SGD's rule).
char *afterfit_sgd(at::Tensor *weights, at::Tensor *gradient, at::Tensor *velocity, at::Tensor *rate, double momentum,
                   bool nesterov, double decay) {
  return guarded([&] {
    c10::AutoGradMode no_grad(false);
    auto list = [](at::Tensor *tensor) { return tensor ? std::vector<at::Tensor>{*tensor} : std::vector<at::Tensor>{}; };
    at::_fused_sgd_(list(weights), list(gradient), list(velocity), decay, momentum, *rate, /*dampening=*/0.0, nesterov,
                    /*maximize=*/false, /*is_first_step=*/false);
  });
}

#ifdef AFTERFIT_CUDA

bool afterfit_has_graphs() { return true; }

// Capturing is refused on the default stream: this thread works on one of its own from now on.
char *afterfit_enter_stream() {
  return guarded([] { c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromPool(/*isHighPriority=*/true)); });
}

char *afterfit_graph_new(at::cuda::CUDAGraph **graph) {
  return guarded([&] { *graph = new at::cuda::CUDAGraph(); });
}
char *afterfit_graph_begin(at::cuda::CUDAGraph *graph) {
  return guarded([&] { graph->capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal); });
}
char *afterfit_graph_end(at::cuda::CUDAGraph *graph) {
  return guarded([&] { graph->capture_end(); });
}
char *afterfit_graph_replay(at::cuda::CUDAGraph *graph) {
  return guarded([&] { graph->replay(); });
}
void afterfit_graph_delete(at::cuda::CUDAGraph *graph) { delete graph; }

#else

bool afterfit_has_graphs() { return false; }
static char *without_cuda() { return strdup("this program was built without CUDA"); }
char *afterfit_enter_stream() { return without_cuda(); }
char *afterfit_graph_new(void **) { return without_cuda(); }
char *afterfit_graph_begin(void *) { return without_cuda(); }
char *afterfit_graph_end(void *) { return without_cuda(); }
char *afterfit_graph_replay(void *) { return without_cuda(); }
void afterfit_graph_delete(void *) {}

#endif
}
