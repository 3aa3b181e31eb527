"""The address of an SQLite file, for MLflow and for Optuna."""

from pathlib import Path

from bench.errors import UserError


def sqlite_url(file: Path) -> str:
    """Write the address of an SQLite file for SQLAlchemy, where `?`, `#` and `%` would end or change the path.

    An address with quoted characters names the driver, too: MLflow takes the text after `sqlite:///` for a path and
    makes its folders.

    Raises:
        UserError: this version of SQLAlchemy cannot read such a name from an address.
    """
    from sqlalchemy import URL, make_url

    path = str(file.absolute())
    url = URL.create("sqlite", database=path).render_as_string()
    if make_url(url).database != path:  # SQLAlchemy before 2.1 reads nothing back from `%3F`
        raise UserError(f"{file}: the name of its folder needs SQLAlchemy 2.1 or later; take one without ? and %")
    return url.replace("sqlite:", "sqlite+pysqlite:", 1) if "%" in url else url
