#include "sim/platform/engine_loader.hpp"

#include "core/errors.hpp"
#include "sim/platform/platform.hpp"
#include "sim/platform/simgrid_compat.hpp"

#include <fmt/format.h>

#include <sys/mman.h>
#include <unistd.h>
#include <array>
#include <csignal>
#include <fstream>
#include <vector>

namespace isobar::sim {

namespace {

/// Restores the signal handlers that SimGrid replaces when it starts.
class KeepSignals {
 public:
  KeepSignals()
  {
    for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], nullptr, &before_[i]);
  }
  KeepSignals(const KeepSignals&) = delete;
  KeepSignals& operator=(const KeepSignals&) = delete;
  ~KeepSignals()
  {
    for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &before_[i], nullptr);
  }

 private:
  static constexpr std::array<int, 3> signals = {SIGINT, SIGSEGV, SIGBUS};
  std::array<struct sigaction, signals.size()> before_;
};

/// Makes the links of a cluster fat pipes, but for its backbone and its limiters, which have policies of their own.
void make_fat_pipes(const std::string& cluster)
{
  const std::string backbone = cluster + "_backbone";
  for (auto* link : links_within(*sg4::Engine::get_instance()->netzone_by_name_or_null(cluster))) {
    if (link->get_name() == backbone || link->get_name().ends_with("_limiter")) continue;
    link->set_sharing_policy(sg4::Link::SharingPolicy::FATPIPE);
  }
}

}  // namespace

TextInMemory::TextInMemory(const std::string& text) : descriptor_(memfd_create("platform", MFD_CLOEXEC))
{
  if (descriptor_ < 0) throw EnvironmentError("no memory for a platform file");
  std::ofstream(path(), std::ios::binary) << text;
}

TextInMemory::~TextInMemory()
{
  close(descriptor_);
}

std::string TextInMemory::path() const
{
  return fmt::format("/proc/self/fd/{}", descriptor_);
}

void load_into_engine(const EngineSource& source)
{
  static std::vector<std::string> arguments = {"isobar", "--log=root.thres:critical", "--log=root.fmt:%m%n"};
  std::vector<char*> pointers;
  for (auto& argument : arguments) pointers.push_back(argument.data());
  int count = static_cast<int>(pointers.size());
  pointers.push_back(nullptr);
  const KeepSignals keep;
  static auto* engine = new sg4::Engine(&count, pointers.data());  // lives as long as the process
  for (const auto& [name, value] : network_settings()) sg4::Engine::set_config(name + ":" + value);
  if (!source.folder.empty()) sg4::Engine::set_config("path", source.folder);
  engine->load_platform(source.file);
  engine->seal_platform();  // zones complete their routes only now
  for (const auto& cluster : source.fat_pipe_clusters) make_fat_pipes(cluster);
}

}  // namespace isobar::sim
