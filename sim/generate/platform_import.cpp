#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/text/csv_table.hpp"
#include "core/text/document.hpp"
#include "sim/generate/generator_options.hpp"
#include "sim/generate/platform_generator.hpp"
#include "sim/generate/platform_xml.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <stdexcept>

namespace isobar::sim {

namespace {

/// Far above any network, far below the largest double.
constexpr double highest_number = 1e9;

/// Reads the cells of a table and collects their faults.
class CellReader {
 public:
  explicit CellReader(FaultList& faults) : faults_(&faults) {}

  /// Checks a site's name, which becomes part of the names of its hosts and links, joined by dots.
  void name(int line, const std::string& column, const std::string& cell) const
  {
    constexpr std::string_view allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-:";
    if (cell.empty() || cell.find_first_not_of(allowed) != std::string::npos) {
      faults_->add(line, column,
                   fmt::format("\"{}\" cannot name a site; use letters, digits, \"-\", \"_\" and \":\"", cell));
    }
  }

  double above_zero(int line, const std::string& column, const std::string& cell) const
  {
    const double value = number(cell);
    if (value > 0 && value <= highest_number) return value;
    faults_->add(line, column, fmt::format("\"{}\" is not a number above 0 and at most {}", cell, highest_number));
    return 1;
  }

  double not_negative(int line, const std::string& column, const std::string& cell) const
  {
    const double value = number(cell);
    if (value >= 0 && value <= highest_number) return value;
    faults_->add(line, column, fmt::format("\"{}\" is not a number from 0 to {}", cell, highest_number));
    return 0;
  }

 private:
  /// NaN, which is in no range, for a cell that is not one number.
  static double number(const std::string& cell)
  {
    double value = 0;
    const char* const end = cell.data() + cell.size();
    const auto [rest, failure] = std::from_chars(cell.data(), end, value);
    return failure == std::errc() && rest == end ? value : std::nan("");
  }

  FaultList* faults_;
};

BytesPerSecond gigabits(double number)
{
  return BytesPerSecond(number * 1e9 / 8);
}
Seconds milliseconds(double number)
{
  return Seconds(number / 1e3);
}

/// Measured paths by the names of their ends.
struct Matrix {
  struct Entry {
    WanPath path;
    int line = 0;
  };
  std::map<std::pair<std::string, std::string>, Entry> entries;
  std::vector<std::string> names;  ///< in the file's order
  std::vector<std::string> comments;

  bool names_site(const std::string& name) const { return std::find(names.begin(), names.end(), name) != names.end(); }
};

Matrix read_matrix(const ImportOptions& options)
{
  FaultList faults(options.matrix.string());
  const auto table =
      CsvTable::by_hand(read_file(options.matrix), {"from", "to", "bandwidth_gbit_s", "rtt_ms"}, {}, faults);
  const CellReader cells(faults);
  Matrix matrix;
  matrix.comments = table.comments();
  const auto enter = [&](const std::string& from, const std::string& to, const Matrix::Entry& entry) {
    const auto [known, is_new] = matrix.entries.try_emplace({from, to}, entry);
    if (!is_new && known->second.line != entry.line) {
      faults.add(entry.line, "to",
                 fmt::format("{} to {} is already in line {}; write each {} once", from, to, known->second.line,
                             options.undirected ? "pair" : "directed pair"));
    }
    return is_new;
  };
  for (const auto& row : table.rows()) {
    const auto& from = row.cells[0];
    const auto& to = row.cells[1];
    cells.name(row.line, "from", from);
    cells.name(row.line, "to", to);
    const Matrix::Entry entry{{gigabits(cells.above_zero(row.line, "bandwidth_gbit_s", row.cells[2])),
                               milliseconds(cells.not_negative(row.line, "rtt_ms", row.cells[3]))},
                              row.line};
    if (from == to) {
      faults.add(row.line, "to", fmt::format("{} is also in the column from; a row joins two sites", to));
      continue;
    }
    for (const auto& name : {from, to}) {
      if (!matrix.names_site(name)) matrix.names.push_back(name);
    }
    if (enter(from, to, entry) && options.undirected) enter(to, from, entry);
  }
  faults.throw_if_any();
  return matrix;
}

/// The site of one row of the table of sites.
Site site_of(const CsvTable::Row& row, const CellReader& cells, FaultList& faults)
{
  Site site;
  site.name = row.cells[0];
  try {
    site.devices = device_groups_from_text(row.cells[1]);
    for (const auto& group : site.devices) {
      if (!group.type.empty()) continue;
      faults.add(row.line, "devices",
                 fmt::format("\"{}\" has no type; write COUNTxTYPE, such as \"8xT4\"", row.cells[1]));
    }
  } catch (const std::invalid_argument& fault) {
    faults.add(row.line, "devices", fault.what());
  }
  site.lan_bandwidth = gigabits(cells.above_zero(row.line, "lan_bandwidth_gbit_s", row.cells[2]));
  site.lan_rtt = milliseconds(cells.not_negative(row.line, "lan_rtt_ms", row.cells[3]));
  const auto cap = [&](const char* column, const std::string& cell) -> std::optional<BytesPerSecond> {
    if (cell.empty()) return std::nullopt;
    return gigabits(cells.above_zero(row.line, column, cell));
  };
  site.egress = cap("egress_gbit_s", row.cells[4]);
  site.ingress = cap("ingress_gbit_s", row.cells[5]);
  return site;
}

struct SiteTable {
  std::vector<Site> sites;
  std::vector<std::string> comments;
};

SiteTable read_sites(const ImportOptions& options, const Matrix& matrix)
{
  FaultList faults(options.sites.string());
  const auto table =
      CsvTable::by_hand(read_file(options.sites), {"site", "devices", "lan_bandwidth_gbit_s", "lan_rtt_ms"},
                        {"egress_gbit_s", "ingress_gbit_s"}, faults);
  const CellReader cells(faults);
  SiteTable sites;
  sites.comments = table.comments();
  std::map<std::string, int> lines;
  std::size_t devices = 0;
  for (const auto& row : table.rows()) {
    sites.sites.push_back(site_of(row, cells, faults));
    const auto& site = sites.sites.back();
    if (!matrix.names_site(site.name)) {
      const auto nearest = nearest_word(site.name, matrix.names);
      faults.add(row.line, "site",
                 fmt::format("\"{}\" is not in {}{}", site.name, options.matrix.string(),
                             nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
    }
    const auto [known, is_new] = lines.emplace(site.name, row.line);
    if (!is_new) {
      faults.add(row.line, "site",
                 fmt::format("{} is already in line {}; write each site once", site.name, known->second));
    }
    for (const auto& group : site.devices) devices += std::min(group.count, most_devices + 1);
    if (devices > most_devices) {
      faults.add(row.line, "devices",
                 fmt::format("there are too many; a platform has at most {} devices", most_devices));
      break;
    }
  }
  if (sites.sites.size() > most_sites) {
    faults.add(table.last_line(), "site",
               fmt::format("{} are too many; a platform has at most {} sites", sites.sites.size(), most_sites));
  }
  if (sites.sites.empty() && faults.empty()) {
    faults.add(table.last_line(), "site", "missing; write a row for each site");
  }
  faults.throw_if_any();
  return sites;
}

/// Copies the paths of each pair of sites from the matrix. @throws InputError for pairs without a row, and for round
/// trips shorter than those within the sites.
void add_paths(Sites& sites, const Matrix& matrix, const ImportOptions& options)
{
  const std::size_t count = sites.sites.size();
  sites.paths.resize(count * count);
  std::vector<std::string> faults;
  for (std::size_t from = 0; from < count; ++from) {
    for (std::size_t to = 0; to < count; ++to) {
      if (from == to) continue;
      const auto& sender = sites.sites[from].name;
      const auto& receiver = sites.sites[to].name;
      const auto entry = matrix.entries.find({sender, receiver});
      if (entry == matrix.entries.end()) {
        const bool one_way = matrix.entries.count({receiver, sender}) > 0;
        if (one_way || from < to) {
          faults.push_back(fmt::format("{}: {} to {} is missing; {}", options.matrix.string(), sender, receiver,
                                       one_way
                                           ? "write its row, or give --undirected if each row holds for both directions"
                                           : "each pair of sites needs a row"));
        }
        continue;
      }
      sites.paths[from * count + to] = entry->second.path;
      if (sites.wan_rtt(from, to).value < 0) {
        faults.push_back(
            fmt::format("{}:{}: rtt_ms: {} between {} and {} is less than half of both lan_rtt_ms in {}; "
                        "lower those",
                        options.matrix.string(), entry->second.line, option_of(entry->second.path.rtt), sender,
                        receiver, options.sites.string()));
      }
    }
  }
  if (!faults.empty()) throw InputError(faults);
}

}  // namespace

std::string import_matrix(const ImportOptions& options)
{
  GeneratorCommand command("isobar platform import");
  command.argument(options.matrix.string())
      .path("--sites", options.sites.string())
      .flag("--undirected", options.undirected)
      .window_law(options.flows, options.window);

  const auto matrix = read_matrix(options);
  const auto table = read_sites(options, matrix);
  const Bytes window = options.window.value_or(measured_window);
  Sites sites{table.sites, {}, options.flows, window};
  add_paths(sites, matrix, options);

  std::vector<std::string> notes = {
      "Sites joined as measured; the prop made_by holds the command that makes this file again. A measured round trip "
      "goes",
      "from device to device: the link between two sites has what the sites' own networks leave of it.",
      fmt::format("From {}:", options.matrix.string())};
  const auto append = [&notes](const std::vector<std::string>& more) {
    notes.insert(notes.end(), more.begin(), more.end());
  };
  append(matrix.comments);
  notes.push_back(fmt::format("From {}:", options.sites.string()));
  append(table.comments);
  std::vector<DeviceGroup> all;
  for (const auto& site : table.sites) all.insert(all.end(), site.devices.begin(), site.devices.end());
  append(notes_on(all));
  append(notes_on_window(options.flows, window));
  return platform_of_sites(command.text(), notes, sites, {});
}

}  // namespace isobar::sim
