"""The operator's page: rights, actions with their plans, and the routes of ``/sluice/api/v1``.

Nothing is implemented twice: every read and every action calls what :mod:`sluice.operations` and :mod:`sluice.flows`
have for the command line, and every run is opened or cleared by Airflow's own API with the rights of the user.
"""
