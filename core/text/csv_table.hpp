#pragma once

#include "core/text/document.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace isobar {

/// A CSV file, read strictly: below a header line, each row has as many cells as the header. A CR before the end of a
/// line is dropped, and so is a byte order mark.
class CsvTable {
 public:
  struct Row {
    int line = 0;
    std::vector<std::string> cells;  ///< in the order of `columns()`; "" for a column that the file lacks
  };

  /// Reads a table written by hand: known columns, each at most once and in any order. Lines that begin with # are
  /// comments, empty lines are skipped, and blanks around cells are dropped. Quotation marks and control characters are
  /// refused.
  ///
  /// Adds each fault to `faults`, which is the list of the same file, and leaves out rows with faults.
  static CsvTable by_hand(const std::string& text, const std::vector<std::string>& required,
                          const std::vector<std::string>& optional, FaultList& faults);
  /// Reads a table that `csv_line` wrote below the line `header`: exactly these columns, cells kept to the last blank,
  /// no comments and no empty lines. A cell cannot hold a line break.
  ///
  /// Adds each fault to `faults`, as above.
  static CsvTable by_program(const std::string& text, std::string_view header, FaultList& faults);
  /// Reads a table without a header, whose rows may have different numbers of cells. Blanks around cells are dropped.
  /// An empty line is a row of one empty cell.
  ///
  /// Adds each fault to `faults`, as above, and reads no more than `most_cells` cells.
  static CsvTable without_header(const std::string& text, std::size_t most_cells, FaultList& faults);

  /// For a table written by hand: the required ones, then the optional ones.
  const std::vector<std::string>& columns() const { return columns_; }
  const std::vector<Row>& rows() const { return rows_; }
  /// Without their #, in the order of the file.
  const std::vector<std::string>& comments() const { return comments_; }
  /// Number of the last line, from 1.
  int last_line() const { return last_line_; }

 private:
  explicit CsvTable(std::vector<std::string> columns) : columns_(std::move(columns)) {}

  std::vector<std::string> columns_;
  std::vector<Row> rows_;
  std::vector<std::string> comments_;
  int last_line_ = 1;
};

/// One line of a CSV file (RFC 4180): a cell with a comma, quote or line break is quoted.
std::string csv_line(const std::vector<std::string>& cells);

}  // namespace isobar
