#pragma once

#include "core/model/dtype.hpp"
#include "core/units.hpp"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace isobar::sim {

/// Isobar's own `<prop>`s of one element of a platform file, or of one entry of a devices file (docs/formats.md).
struct Props {
  std::optional<Bytes> memory;
  std::optional<std::string> device;
  std::optional<std::string> site;
  std::map<DType, FlopsPerSecond> speed_in;
  std::optional<double> price_usd_per_hour;
  bool data_server = false;
  std::optional<double> flows;
  std::optional<Bytes> window;
};

/// What an element may carry: on the others a prop of ours means nothing.
enum class PropHolder { Host, Link, Zone, Cluster };

/// Takes a prop if it is one of ours, and says whether it was; a prop of somebody else is left alone.
/// @throws std::invalid_argument with the fault in words: a value that cannot be read, one of ours on an element where
/// it means nothing, or a near misspelling of one of ours.
bool read_prop(Props& props, PropHolder holder, const std::string& id, const std::string& value);

/// Whether a prop of a platform file is another program's, though its name is one of ours: a role such as Batsim's
/// `master` that is not near `data-server`, or, on an element where the prop means nothing, a value that is not ours,
/// such as memory="128".
bool is_foreign_prop(PropHolder holder, const std::string& id, const std::string& value);

/// The props that an element may carry.
std::vector<std::string> prop_names(PropHolder holder);

/// Puts what `above` says over `below`.
void overlay(Props& below, const Props& above);

}  // namespace isobar::sim
