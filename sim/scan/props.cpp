#include "sim/scan/props.hpp"

#include "core/errors.hpp"
#include "core/names.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <set>
#include <stdexcept>

namespace isobar::sim {

namespace {

constexpr std::uint64_t most_flows = 1'000'000;
constexpr NameTable<Role, 2> roles = {{{Role::DataServer, "data-server"}, {Role::Machine, "machine"}}};
constexpr std::string_view speed_prefix = "speed.";

std::string text_value(const std::string& value)
{
  if (value.empty()) throw std::invalid_argument("is empty; write a name or leave the prop out");
  return value;
}

template <typename Quantity>
Quantity more_than_zero(Quantity quantity, const std::string& value)
{
  if (!(quantity.value > 0)) throw std::invalid_argument(fmt::format("\"{}\" is not greater than 0", value));
  return quantity;
}

double count_of_flows(const std::string& value)
{
  std::uint64_t count = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), count);
  if (error != std::errc() || end != value.data() + value.size() || count < 1 || count > most_flows) {
    throw std::invalid_argument(fmt::format("\"{}\" is not a number of flows; write a whole number, 1 or more", value));
  }
  return static_cast<double>(count);
}

double interference_of(const std::string& value)
{
  constexpr double most = 1000;
  double factor = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), factor);
  const bool is_number = error == std::errc() && end == value.data() + value.size();
  if (!is_number || !(factor >= 1) || factor > most) {
    throw std::invalid_argument(fmt::format(
        "\"{}\" is not a number from 1 to {}; write how many times longer the device computes beside a collective",
        value, most));
  }
  return factor;
}

bool read_host_prop(Props& props, const std::string& id, const std::string& value)
{
  if (id == "memory") {
    props.memory = more_than_zero(bytes_from_text(value), value);
  } else if (id == "device") {
    props.device = text_value(value);
  } else if (id == "price") {
    props.price_usd_per_hour = price_from_text(value);
  } else if (id == "role") {
    props.role = value_in(roles, value);
    if (!props.role) {
      throw std::invalid_argument(
          fmt::format("\"{}\" is not a role; write \"{}\"", value, fmt::join(names_in(roles), "\" or \"")));
    }
  } else if (id == "host") {
    props.host = text_value(value);
  } else if (id == "interference") {
    props.interference = interference_of(value);
  } else if (id == "collective_start") {
    props.collective_start = seconds_from_text(value);
  } else if (id.starts_with(speed_prefix)) {
    const auto dtype = dtype_from_name(std::string_view(id).substr(speed_prefix.size()));
    if (!dtype) {
      throw std::invalid_argument(
          fmt::format("unknown dtype; write one of speed.{}", fmt::join(dtype_names(), ", speed.")));
    }
    props.speed_in[*dtype] = more_than_zero(speed_from_text(value), value);
  } else {
    return false;
  }
  return true;
}

bool read_known_prop(Props& props, const std::string& id, const std::string& value)
{
  if (id == "site") {
    props.site = text_value(value);
  } else if (id == "flows") {
    props.flows = count_of_flows(value);
  } else if (id == "window") {
    props.window = more_than_zero(bytes_from_text(value), value);
  } else if (id == "capacity") {
    props.capacity = more_than_zero(bytes_from_text(value), value);
  } else {
    return read_host_prop(props, id, value);
  }
  return true;
}

std::string_view place_of(const std::string& id)
{
  if (id == "site") return "a host, a zone or a cluster";
  if (id == "flows" || id == "window") return "a link, a zone or a cluster";
  if (id == "capacity") return "a disk";
  return "a host or a cluster";
}

/// Props that other programs give to hosts and that are similar to one of Isobar's.
bool is_foreign(const std::string& id)
{
  return id == "size";
}

void check_spelling(PropHolder holder, const std::string& id)
{
  const auto nearest = is_foreign(id) ? std::string() : nearest_word(id, prop_names(holder));
  if (!nearest.empty()) throw std::invalid_argument(fmt::format("unknown; did you mean {}?", nearest));
}

}  // namespace

std::vector<std::string> prop_names(PropHolder holder)
{
  if (holder == PropHolder::Disk) return {"capacity"};
  std::vector<std::string> names;
  if (holder == PropHolder::Host || holder == PropHolder::Cluster) {
    names = {"memory", "device", "price", "role", "host", "interference", "collective_start"};
    for (const auto& dtype : dtype_names()) names.push_back("speed." + dtype);
  }
  if (holder != PropHolder::Link) names.push_back("site");
  if (holder != PropHolder::Host) names.insert(names.end(), {"flows", "window"});
  return names;
}

bool is_foreign_prop(PropHolder holder, const std::string& id, const std::string& value)
{
  if (id == "role") return !value_in(roles, value) && nearest_word(value, names_in(roles)).empty();
  const auto allowed = prop_names(holder);
  if (id.starts_with(speed_prefix) || std::find(allowed.begin(), allowed.end(), id) != allowed.end()) return false;
  try {
    Props unused;
    read_known_prop(unused, id, value);
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

bool is_foreign_memory(std::string_view id)
{
  static const std::set<std::string_view> names = {"ram",        "RAM",           "mem",  "mem_size",
                                                   "gpu_memory", "device_memory", "vram", "memory_size"};
  return names.contains(id);
}

bool is_foreign_gpu(std::string_view id)
{
  return id == "num_gpus" || id == "flops_per_gpu" || id == "gpu_to_gpu_bw";
}

bool read_prop(Props& props, PropHolder holder, const std::string& id, const std::string& value)
{
  if (!read_known_prop(props, id, value)) {
    check_spelling(holder, id);
    return false;
  }
  const auto allowed = prop_names(holder);
  if (std::find(allowed.begin(), allowed.end(), id) == allowed.end()) {
    throw std::invalid_argument(fmt::format("has no effect here; it belongs to {}", place_of(id)));
  }
  return true;
}

void overlay(Props& below, const Props& above)
{
  if (above.memory) below.memory = above.memory;
  if (above.device) below.device = above.device;
  if (above.site) below.site = above.site;
  for (const auto& [dtype, speed] : above.speed_in) below.speed_in[dtype] = speed;
  if (above.price_usd_per_hour) below.price_usd_per_hour = above.price_usd_per_hour;
  if (above.role) below.role = above.role;
  if (above.host) below.host = above.host;
  if (above.interference) below.interference = above.interference;
  if (above.collective_start) below.collective_start = above.collective_start;
  if (above.flows) below.flows = above.flows;
  if (above.window) below.window = above.window;
  if (above.capacity) below.capacity = above.capacity;
}

}  // namespace isobar::sim
