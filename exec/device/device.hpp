#pragma once

#include "core/units.hpp"
#include "exec/device/tensors.hpp"

#include <cstddef>
#include <string>

namespace isobar::exec {

/// Canonical name of a device: "cpu" or "cuda:N"; "cuda" becomes "cuda:0". Opens no device, so the process may still
/// fork.
/// @throws InputError naming --device when `text` is not the name of a device.
std::string device_from_text(const std::string& text);
bool is_gpu(const std::string& device);

/// Opens a device in this process. Open a GPU before torch computes anything, even on the CPU (torch looks for its GPU
/// library only once), and never before a fork.
/// @throws EnvironmentError with a one-line reason: built without CUDA, no GPU, no libtorch_cuda.
void open_device(const std::string& device);

/// Name, memory and location of an open GPU.
struct GpuFacts {
  std::string name;
  Bytes memory;
  std::string place;  ///< address on the PCI bus
};
GpuFacts facts_of_gpu(const std::string& device);

/// Moves a tensor to a device. The copy to a GPU goes through pinned memory on the calling thread's stream, and the
/// host does not wait for it.
at::Tensor on_device(const at::Tensor& tensor, const std::string& device);
/// Begins a copy to pinned memory on the calling thread's stream; it is complete once the stream has passed it. Returns
/// a tensor on the CPU unchanged.
at::Tensor begin_copy(const at::Tensor& tensor);
/// Contiguous copies on the CPU, complete on return. The thread waits for its own stream only.
Tensors on_cpu(const Tensors& tensors);

/// Sets the number of threads of the calling thread's computation on the CPU.
void set_computing_threads(std::size_t threads);

/// For its lifetime, torch's calls that make the host wait for a GPU throw, in the whole process. No effect on a CPU.
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
