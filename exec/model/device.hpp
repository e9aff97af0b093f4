#pragma once

#include "core/units.hpp"
#include "exec/model/layer_module.hpp"

#include <string>

namespace isobar::exec {

/// A device's name in its one form, "cpu" or "cuda:N"; "cuda" is "cuda:0". Touches no device, so that a process may
/// still fork.
/// @throws InputError, naming --device, when `text` is no name of a device.
std::string device_from_text(const std::string& text);
bool is_gpu(const std::string& device);

/// Makes a device ready in this process. A GPU is opened before torch computes anything, on the CPU either (it looks
/// for its GPU library once and for all), and never before a fork.
/// @throws EnvironmentError with one line that says why it cannot be used: built without CUDA, no GPU, no
/// libtorch_cuda.
void open_device(const std::string& device);

/// What an open GPU calls itself, its memory, and which of the machine's it is.
struct GpuFacts {
  std::string name;
  Bytes memory;
  std::string place;  ///< on the PCI bus
};
GpuFacts facts_of_gpu(const std::string& device);

/// The tensor there. To a GPU it travels through pinned memory, in the calling thread's queue: nobody waits for it.
at::Tensor on_device(const at::Tensor& tensor, const std::string& device);
/// A copy in pinned memory, whole once the calling thread's queue has come so far; of a tensor on the CPU: itself.
at::Tensor copy_begun(const at::Tensor& tensor);
/// Contiguous and whole on the CPU when it returns; the thread waits for its own queue alone.
Tensors on_cpu(const Tensors& tensors);

/// While it lives, torch's calls that make the host wait for a GPU throw, in the whole process. On a CPU nothing.
class NoHostSync {
 public:
  explicit NoHostSync(const std::string& device);
  NoHostSync(const NoHostSync&) = delete;
  NoHostSync& operator=(const NoHostSync&) = delete;
  ~NoHostSync();

 private:
  bool on_gpu_;
};

}  // namespace isobar::exec
