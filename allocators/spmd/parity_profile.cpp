#include "allocators/spmd/parity_profile.hpp"

#include "core/base/files.hpp"
#include "core/text/document.hpp"

namespace isobar::allocators::spmd {

using isobar::spmd::ReformKind;

Seconds ParityProfile::time_of(ReformKind kind, Bytes size) const
{
  constexpr Seconds latency(1e-4);
  switch (kind) {
    case ReformKind::AllGather:
      return size / all_gather + latency;
    case ReformKind::AllReduce:
      return size / all_reduce + latency;
    case ReformKind::ReduceScatter:
      return size / reduce_scatter + latency;
    case ReformKind::AllToAll:
      return size / all_to_all + latency;
    default:
      return Seconds(0);
  }
}

ParityProfile read_parity_profile(const std::filesystem::path& file)
{
  return parity_profile_from_json(read_file(file), file.string());
}

ParityProfile parity_profile_from_json(const std::string& text, const std::string& name)
{
  constexpr std::uint64_t most_devices = 1'000'000;
  const auto document = parse_json(text, name);
  FaultList faults(name);
  MappingReader reader(document, "", faults);
  const auto rate = [&](const std::string& key) {
    const double value = reader.required_number(key);
    if (reader.has(key) && faults.empty() && value == 0) reader.add_fault(key, "is 0; write a positive rate");
    return value;
  };
  ParityProfile profile;
  profile.devices = reader.required_count("devices", 1, most_devices);
  profile.device_flops = FlopsPerSecond(rate("device_flops"));
  profile.all_gather = BytesPerSecond(rate("all_gather"));
  profile.all_reduce = BytesPerSecond(rate("all_reduce"));
  profile.reduce_scatter = BytesPerSecond(rate("reduce_scatter"));
  profile.all_to_all = BytesPerSecond(rate("all_to_all"));
  reader.refuse_unknown();
  faults.throw_if_any();
  return profile;
}

}  // namespace isobar::allocators::spmd
