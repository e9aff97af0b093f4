#pragma once

#include <functional>
#include <string>
#include <vector>

namespace isobar::results {

/// A text and the file that holds it.
struct NamedText {
  std::string name;
  std::string text;
};

/// Whether a text is a result of `isobar simulate --mix` (isobar-mix-result/1).
bool is_mix_result(const std::string& text);

/// Where the platform of a result is found.
struct MixPlatform {
  std::string name;
  std::string hash;
  std::string devices;  ///< its devices file; "": none was named
};
/// @throws InputError for a text that is no result of a mix.
MixPlatform platform_of(const NamedText& result);

/// Names of the links from a device to another.
using LinksBetween = std::function<std::vector<std::string>(const std::string& from, const std::string& to)>;

/// The object `mix` of isobar-report/1 (docs/formats/report.md): the numbers of a result, and of its trace the first
/// rounds, for each device and each link: who computes, waits and sends.
/// @throws InputError for a trace that is not one of the result's jobs.
std::string mix_to_report(const NamedText& result, const NamedText& trace, const LinksBetween& links_between);

/// isobar-report/1 with `mix` instead of `runs`.
std::string mix_report_to_json(const std::string& version, const std::string& mix);

}  // namespace isobar::results
