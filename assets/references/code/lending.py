"""Keep track of the tools that a neighbourhood lends out."""

import argparse
import json
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from pathlib import Path

LOAN_DAYS = 14
FEE_PER_DAY = 0.5


@dataclass
class Loan:
    tool: str
    person: str
    start: str

    def due_date(self):
        """Return the day on which the tool has to be back."""
        return date.fromisoformat(self.start) + timedelta(days=LOAN_DAYS)

    def days_late(self, today):
        """Return how many days the loan is overdue, 0 if it is not."""
        return max(0, (today - self.due_date()).days)


def load_loans(path):
    """Read all loans from a JSON file."""
    if not path.exists():
        return []
    entries = json.loads(path.read_text(encoding="utf-8"))
    return [Loan(**entry) for entry in entries]


def save_loans(path, loans):
    """Write all loans to a JSON file."""
    entries = [asdict(loan) for loan in loans]
    path.write_text(json.dumps(entries, indent=2), encoding="utf-8")


def find_loan(loans, tool):
    """Return the open loan of a tool, or None."""
    for loan in loans:
        if loan.tool == tool:
            return loan
    return None


def lend(loans, tool, person, today):
    """Add a loan, unless the tool is already lent out."""
    open_loan = find_loan(loans, tool)
    if open_loan is not None:
        raise ValueError(f"{tool} is with {open_loan.person}")
    loan = Loan(tool, person, today.isoformat())
    loans.append(loan)
    return loan


def give_back(loans, tool, today):
    """Remove a loan and return the fee to be paid."""
    loan = find_loan(loans, tool)
    if loan is None:
        raise ValueError(f"{tool} is not lent out")
    loans.remove(loan)
    return fee(loan, today)


def fee(loan, today):
    """Return what a loan costs if it is returned today."""
    return loan.days_late(today) * FEE_PER_DAY


def overdue(loans, today):
    """Return the overdue loans, the longest overdue first."""
    late = [loan for loan in loans if loan.days_late(today) > 0]
    return sorted(late, key=lambda loan: loan.due_date())


def format_loan(loan, today):
    """Return one line about a loan."""
    line = f"{loan.tool:<16} {loan.person:<12} due {loan.due_date()}"
    days = loan.days_late(today)
    if days > 0:
        line += f"  {days} days late, fee {fee(loan, today):.2f}"
    return line


def make_parser():
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, default=Path("loans.json"))
    commands = parser.add_subparsers(dest="command", required=True)
    lending = commands.add_parser("lend")
    lending.add_argument("tool")
    lending.add_argument("person")
    returning = commands.add_parser("return")
    returning.add_argument("tool")
    commands.add_parser("list")
    commands.add_parser("overdue")
    return parser


def run(options, loans, today):
    """Do what the command line asks for, and yield the lines to print."""
    if options.command == "lend":
        loan = lend(loans, options.tool, options.person, today)
        yield format_loan(loan, today)
    elif options.command == "return":
        yield f"Fee: {give_back(loans, options.tool, today):.2f}"
    else:
        shown = loans if options.command == "list" else overdue(loans, today)
        for loan in shown:
            yield format_loan(loan, today)


def main():
    parser = make_parser()
    options = parser.parse_args()
    loans = load_loans(options.file)
    try:
        for line in run(options, loans, date.today()):
            print(line)
    except ValueError as error:
        parser.error(str(error))
    save_loans(options.file, loans)


if __name__ == "__main__":
    main()
